# cmake -DROOT=FOLDER -DOUTPUT=FILE.cpp -DCOMPILER=TEXT -DOPTIONS=TEXT -P scripts/build_info.cmake
# Writes the values of train/build_info.h for the sources under ROOT; leaves the file alone where they are the same.
set(all "")
foreach(folder kernels comm model data train)
  file(GLOB_RECURSE sources RELATIVE ${ROOT} ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cpp ${ROOT}/${folder}/*.cu)
  list(APPEND all ${sources})
endforeach()
list(APPEND all CMakeLists.txt)
list(SORT all)
set(lines "")
foreach(source ${all})
  file(SHA256 ${ROOT}/${source} hash)
  string(APPEND lines "${hash}  ${source}\n") # as sha256sum writes it
endforeach()
string(SHA256 hash "${lines}")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#include \"train/build_info.h\"
const triax::BuildInfo triax::kBuildInfo{\"${hash}\", \"${COMPILER}\", \"${OPTIONS}\"};
")
