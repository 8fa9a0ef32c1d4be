"""Reads safetensors with the standard library, to compare checkpoints tensor by tensor."""
import array
import json
import math


def read_f32(path, prefix=""):
    """{name without `prefix`: numbers} of the tensors whose names begin with it; all must be F32."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin, tensors = file.tell(), {}
        for name, entry in header.items():
            if name == "__metadata__" or not name.startswith(prefix):
                continue
            assert entry["dtype"] == "F32", f"{path}: {name} is {entry['dtype']}"
            first, end = entry["data_offsets"]
            file.seek(begin + first)
            tensors[name[len(prefix):]] = array.array("f", file.read(end - first))
    return tensors


def norm(values):
    return math.sqrt(math.fsum(x * x for x in values))


def difference(a, b):
    """Norm of a - b over the norm of a."""
    return norm(x - y for x, y in zip(a, b, strict=True)) / norm(a)


def assert_same_first_gradients(test, one, many):
    """`one`, `many`: checkpoints of step 1, whose first moments are (1 - beta1) times the gradient."""
    a, b = (read_f32(checkpoint / "optimizer.safetensors", "moment1.") for checkpoint in (one, many))
    test.assertTrue(a)
    test.assertEqual(a.keys(), b.keys())
    for name in a:
        test.assertGreater(norm(a[name]), 0, name)
        test.assertLessEqual(difference(a[name], b[name]), 1e-5, name)
