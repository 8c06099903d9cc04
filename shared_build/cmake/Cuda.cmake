# The CUDA part of a package: whether it is built, with which nvcc, and as a library of its own beside the CPU's.
#
# It is decided by nvcc and torch, never by whether this machine has a GPU, and never silently: one line says what was
# decided and why, or what to set.
#
#   OPWRIGHT_CUDA=AUTO   built where an nvcc is found whose major version is that of torch's CUDA; else CPU only
#   OPWRIGHT_CUDA=ON     built, or an error; a torch without CUDA is good enough, since the library links to nothing of it
#   OPWRIGHT_CUDA=OFF    not built
#
# nvcc is looked for in CUDACXX, CUDA_HOME, CUDA_PATH, PATH and /usr/local/cuda, in this order.

include_guard(GLOBAL)

set(OPWRIGHT_CUDA "AUTO" CACHE STRING "CUDA kernels: AUTO (where nvcc fits torch), ON (or fail), OFF")
set_property(CACHE OPWRIGHT_CUDA PROPERTY STRINGS AUTO ON OFF)
set(OPWRIGHT_CUDA_ARCHITECTURES "80;90" CACHE STRING "Compute capabilities to compile for; PTX of the highest goes along")
set(OPWRIGHT_CUDA_OLDEST 80)  # bfloat16 arithmetic
set(OPWRIGHT_NVCC_OLDEST 12.4)  # C++20, and the host compilers that have it

# ---- nvcc -----------------------------------------------------------------------------------------------------------------

# Sets `${result}` to the path of nvcc, or to an empty string.
function(_opwright_find_nvcc result)
  set(${result} "" PARENT_SCOPE)
  unset(nvcc)
  if(DEFINED ENV{CUDACXX})
    find_program(nvcc NAMES "$ENV{CUDACXX}" NO_CACHE)
  else()
    find_program(nvcc nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin NO_CACHE)
  endif()
  if(nvcc)
    set(${result} "${nvcc}" PARENT_SCOPE)
  endif()
endfunction()

# Sets `${result}` to nvcc's version, such as 13.0.
function(_opwright_nvcc_version nvcc result)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  if(status EQUAL 0 AND text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  else()
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

# Sets `${result}` to what keeps nvcc from compiling for the architectures that are set, or to an empty string.
function(_opwright_architecture_problem nvcc result)
  set(${result} "" PARENT_SCOPE)
  execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
  string(REGEX MATCHALL "compute_[0-9]+" known "${text}")
  list(TRANSFORM known REPLACE "compute_" "")
  set(usable "")
  foreach(arch IN LISTS known)
    if(arch GREATER_EQUAL OPWRIGHT_CUDA_OLDEST)
      list(APPEND usable ${arch})
    endif()
  endforeach()
  foreach(arch IN LISTS OPWRIGHT_CUDA_ARCHITECTURES)
    if(NOT arch IN_LIST usable)
      list(JOIN usable ", " text)
      set(${result} "OPWRIGHT_CUDA_ARCHITECTURES among ${text}, but got ${arch}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(NOT OPWRIGHT_CUDA_ARCHITECTURES)
    set(${result} "an architecture in OPWRIGHT_CUDA_ARCHITECTURES, such as 80, but got none" PARENT_SCOPE)
  endif()
endfunction()

# ---- the decision ---------------------------------------------------------------------------------------------------------

# Decides for a package with these CUDA sources and a torch of this version and CUDA version (empty for a CPU build of
# torch). Sets `${result}` to nvcc's path, or to an empty string for CPU only. OPWRIGHT_CUDA_VERSION is set to nvcc's version.
function(_opwright_decide_cuda op sources torch torch_cuda result)
  set(${result} "" PARENT_SCOPE)
  if(NOT OPWRIGHT_CUDA MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "opwright: expected OPWRIGHT_CUDA to be AUTO, ON or OFF, but got ${OPWRIGHT_CUDA}")
  endif()
  if(OPWRIGHT_CUDA STREQUAL "OFF")
    message(STATUS "opwright: CPU only (OPWRIGHT_CUDA=OFF)")
    return()
  endif()

  set(problem "")
  if(NOT sources)
    set(problem "CUDA sources, but ${op} has none; set OPWRIGHT_CUDA=OFF")
  elseif(NOT torch_cuda AND OPWRIGHT_CUDA STREQUAL "AUTO")
    set(problem "a torch with CUDA, but got ${torch} without; set OPWRIGHT_CUDA=ON to build the kernels all the same")
  else()
    _opwright_find_nvcc(nvcc)
    if(NOT nvcc)
      set(problem "nvcc, but found none; set CUDACXX to it or CUDA_HOME to its toolkit, or OPWRIGHT_CUDA=OFF")
    else()
      _opwright_nvcc_version("${nvcc}" version)
      string(REGEX MATCH "^[0-9]+" major "${version}")
      string(REGEX MATCH "^[0-9]+" torch_major "${torch_cuda}")
      if(NOT version)
        set(problem "nvcc --version to name a release, but ${nvcc} does not; set CUDACXX to another nvcc, or OPWRIGHT_CUDA=OFF")
      elseif(version VERSION_LESS OPWRIGHT_NVCC_OLDEST)
        set(problem "nvcc ${OPWRIGHT_NVCC_OLDEST} or later, but got ${version}; set CUDACXX to a newer one, or OPWRIGHT_CUDA=OFF")
      elseif(torch_major AND NOT major EQUAL torch_major)
        set(problem "an nvcc ${torch_major}.x for torch ${torch} with CUDA ${torch_cuda}, but got ${version}; set CUDACXX to one, or OPWRIGHT_CUDA=OFF")
      else()
        _opwright_architecture_problem("${nvcc}" problem)
      endif()
    endif()
  endif()

  if(NOT problem)
    list(JOIN OPWRIGHT_CUDA_ARCHITECTURES ", sm_" names)
    message(STATUS "opwright: CUDA kernels by nvcc ${version} for sm_${names} and later")
    set(OPWRIGHT_CUDA_VERSION "${version}" CACHE INTERNAL "version of nvcc")
    set(${result} "${nvcc}" PARENT_SCOPE)
  elseif(OPWRIGHT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "opwright: expected ${problem}")
  else()
    message(STATUS "opwright: CPU only: expected ${problem}")
  endif()
endfunction()

# ---- the library ----------------------------------------------------------------------------------------------------------

# Sets `${result}` to the toolkit's root, as nvcc itself tells it: nvcc may be a link or a script.
function(_opwright_toolkit nvcc result)
  execute_process(COMMAND "${nvcc}" --dryrun -x cu /dev/null OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(NOT text MATCHES "#\\$ TOP=([^\r\n]+)")
    message(FATAL_ERROR "opwright: expected ${nvcc} --dryrun to name its toolkit, but got ${text}")
  endif()
  get_filename_component(root "${CMAKE_MATCH_1}" REALPATH)
  set(${result} "${root}" PARENT_SCOPE)
endfunction()

# Compiles one .cu file; sets `${result}` to its object.
#
# nvcc is called directly: CMake's own support for CUDA would look for a GPU's architecture and compile test programs first,
# and would hide what ptxas reports. nvcc.py calls it, keeps those reports, and says how paths stay out of the result.
function(_opwright_cuda_object op toolkit source result)
  set(object "${CMAKE_CURRENT_BINARY_DIR}/cuda/${source}.o")
  get_filename_component(folder "${object}" DIRECTORY)
  file(MAKE_DIRECTORY "${folder}")
  set(architectures "")
  foreach(arch IN LISTS OPWRIGHT_CUDA_ARCHITECTURES)
    list(APPEND architectures "-gencode=arch=compute_${arch},code=sm_${arch}")
  endforeach()
  list(GET OPWRIGHT_CUDA_ARCHITECTURES -1 newest)
  list(APPEND architectures "-gencode=arch=compute_${newest},code=compute_${newest}")
  add_custom_command(
    OUTPUT "${object}" "${object}.resources.json"
    COMMAND "${Python_EXECUTABLE}" "${OPWRIGHT_SHARED}/cmake/nvcc.py" "${object}.resources.json"
            "${CMAKE_CURRENT_SOURCE_DIR}" "${toolkit}"
            -c "@/${source}" -o "${object}" -MD -MF "${object}.d" -ccbin "${CMAKE_CXX_COMPILER}"
            -std=c++20 -O3 -DNDEBUG -lineinfo -Xptxas=-v --expt-relaxed-constexpr ${architectures}
            -I@/csrc -I@/shared_build/include "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-psabi"
    DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}" "${OPWRIGHT_SHARED}/cmake/nvcc.py"
    DEPFILE "${object}.d"
    COMMENT "nvcc ${source}"
    VERBATIM)
  set(${result} "${object}" PARENT_SCOPE)
endfunction()

# Adds `_CUDA.so`, which registers CUDA implementations of the operators that `_C.so` defines. The sources are .cu files
# (nvcc) and binding files (the C++ compiler), which see torch as the flavour does.
function(_opwright_cuda_library op flavour nvcc sources)
  _opwright_toolkit("${nvcc}" toolkit)
  find_library(cudart cudart_static PATHS "${toolkit}" PATH_SUFFIXES lib64 lib NO_DEFAULT_PATH NO_CACHE)
  if(NOT cudart)
    message(FATAL_ERROR "opwright: expected libcudart_static.a in ${toolkit}, but found none; set CUDACXX to the nvcc of a whole toolkit")
  endif()
  find_package(Threads REQUIRED)

  set(binding "")
  set(objects "")
  foreach(source IN LISTS sources)
    if(source MATCHES "\\.cu$")
      _opwright_cuda_object(${op} "${toolkit}" "${source}" object)
      list(APPEND objects "${object}")
    else()
      list(APPEND binding "${source}")
    endif()
  endforeach()

  set(target opwright_${op}_cuda)
  add_library(${target} MODULE ${binding} "${OPWRIGHT_SHARED}/src/manylinux.cpp" ${objects})
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  _opwright_common_flags(${target})
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "_CUDA" SUFFIX ".so")
  target_include_directories(${target} SYSTEM PRIVATE "${toolkit}/include")
  list(JOIN OPWRIGHT_CUDA_ARCHITECTURES ", sm_" names)
  target_compile_definitions(${target} PRIVATE
    "OPWRIGHT_CUDA_BUILT=\"CUDA ${OPWRIGHT_CUDA_VERSION} for sm_${names} and later\"")
  if(flavour STREQUAL "aten")
    _opwright_aten(${target} ${op})
  else()
    target_compile_definitions(${target} PRIVATE TORCH_TARGET_VERSION=${OPWRIGHT_TORCH_FLOOR})
  endif()
  # libtorch brings torch's CUDA libraries into reach where there are any, though no symbol of its own is used: the
  # references to those are weak.
  target_link_libraries(${target} PRIVATE stdc++ opwright::torch
    "-Wl,--push-state,--no-as-needed,${OPWRIGHT_TORCH_lib}/libtorch.so,--pop-state"
    "${cudart}" Threads::Threads ${CMAKE_DL_LIBS} rt)
  target_link_options(${target} PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined -Wl,-z,relro,-z,now)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_link_options(${target} PRIVATE -s)
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION "opwright/${op}")
endfunction()

# What op_package calls: nothing, or the library.
function(_opwright_cuda op flavour sources)
  list(SORT OPWRIGHT_CUDA_ARCHITECTURES COMPARE NATURAL)
  if(OPWRIGHT_SANITIZE)
    message(STATUS "opwright: CPU only (OPWRIGHT_SANITIZE=${OPWRIGHT_SANITIZE})")
    return()
  endif()
  _opwright_decide_cuda(${op} "${sources}" "${OPWRIGHT_TORCH_version}" "${OPWRIGHT_TORCH_cuda}" nvcc)
  if(nvcc)
    _opwright_cuda_library(${op} ${flavour} "${nvcc}" "${sources}")
  endif()
endfunction()
