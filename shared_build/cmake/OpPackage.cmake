# The build of every opwright package. A package's CMakeLists.txt is
#
#   cmake_minimum_required(VERSION 3.26)
#   project(opwright_<op> LANGUAGES CXX)
#   include(shared_build/cmake/OpPackage.cmake)
#   op_package(<op> FLAVOUR stable BINDING csrc/bind.cpp CPU_KERNELS csrc/cpu/<op>_kernel.cpp
#              CUDA_SOURCES csrc/cuda/bind_cuda.cpp csrc/cuda/<op>.cu)
#
# and this file owns the flags, the instruction-set levels, torch, and what is installed into the wheel. FLAVOUR stable gives
# one library for every torch from the floor on, FLAVOUR aten one for the torch it is built with. CUDA_SOURCES may be left
# out; Cuda.cmake says when they are compiled.

include_guard(GLOBAL)
include("${CMAKE_CURRENT_LIST_DIR}/Cuda.cmake")

# ---- options -------------------------------------------------------------------------------------------------------------
set(OPWRIGHT_SANITIZE "" CACHE STRING "Sanitizer build: address (with undefined behaviour), thread, or empty")
set_property(CACHE OPWRIGHT_SANITIZE PROPERTY STRINGS "" address thread)
option(OPWRIGHT_WERROR "Treat warnings in opwright's own sources as errors" OFF)

set(OPWRIGHT_TORCH_FLOOR "0x020b000000000000" CACHE INTERNAL "TORCH_TARGET_VERSION of the stable flavour: torch 2.11")
get_filename_component(OPWRIGHT_SHARED "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
include("${CMAKE_CURRENT_LIST_DIR}/Aten.cmake")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Link-time optimisation would merge code of different instruction sets.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
set(CMAKE_BUILD_RPATH "")
set(CMAKE_INSTALL_RPATH "")
set(CMAKE_SKIP_RPATH ON)

# ---- torch, without find_package(Torch): that one fails when a CUDA torch meets a machine with no toolkit ---------------
function(_opwright_find_torch)
  if(TARGET opwright::torch)
    return()
  endif()
  find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${OPWRIGHT_SHARED}/cmake/torch_info.py"
    OUTPUT_VARIABLE info ERROR_VARIABLE error RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${error}")
  endif()
  foreach(key version cuda include include_api lib)
    string(REGEX MATCH "(^|\n)${key}=([^\n]*)" _ "${info}")
    set(OPWRIGHT_TORCH_${key} "${CMAKE_MATCH_2}" CACHE INTERNAL "torch ${key}")
  endforeach()
  if(OPWRIGHT_TORCH_version VERSION_LESS 2.11)
    message(FATAL_ERROR "opwright: expected torch 2.11 or later to build against, but got ${OPWRIGHT_TORCH_version}")
  endif()
  message(STATUS "opwright: building against torch ${OPWRIGHT_TORCH_version}")
  find_library(_opwright_torch_cpu torch_cpu PATHS "${OPWRIGHT_TORCH_lib}" NO_DEFAULT_PATH REQUIRED NO_CACHE)
  add_library(opwright::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(opwright::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${OPWRIGHT_TORCH_include};${OPWRIGHT_TORCH_include_api}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${OPWRIGHT_TORCH_include};${OPWRIGHT_TORCH_include_api}"
    INTERFACE_LINK_LIBRARIES "${_opwright_torch_cpu}")
endfunction()

# ---- flags common to everything that is compiled ------------------------------------------------------------------------
function(_opwright_common_flags target)
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/csrc" "${OPWRIGHT_SHARED}/include")
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wno-psabi
    "-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=" "-ffile-prefix-map=${OPWRIGHT_SHARED}/=shared_build/"
    "$<$<BOOL:${OPWRIGHT_TORCH_include}>:-ffile-prefix-map=${OPWRIGHT_TORCH_include}/=>"
    $<$<BOOL:${OPWRIGHT_WERROR}>:-Werror>)
  if(OPWRIGHT_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined
                                             -fno-sanitize-recover=undefined)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  elseif(OPWRIGHT_SANITIZE STREQUAL "thread")
    target_compile_options(${target} PRIVATE -O1 -g -fno-omit-frame-pointer -fsanitize=thread)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  elseif(OPWRIGHT_SANITIZE)
    message(FATAL_ERROR "opwright: expected OPWRIGHT_SANITIZE to be address, thread or empty, but got ${OPWRIGHT_SANITIZE}")
  endif()
endfunction()

# ---- one object library per instruction-set level, from the same sources ------------------------------------------------
function(_opwright_isa_objects target level vector_bytes sources)
  set(objects "${target}_${level}")
  add_library(${objects} OBJECT ${sources})
  _opwright_common_flags(${objects})
  target_compile_definitions(${objects} PRIVATE OPWRIGHT_ISA=isa_${level} OPWRIGHT_VECTOR_BYTES=${vector_bytes})
  # No flag that lets the compiler forget IEEE arithmetic is used: some would change the floating-point mode of the whole process. A landing pad would bring a weak
  # symbol into the object, so there are none; exceptions of other files pass through, which needs the unwind tables.
  target_compile_options(${objects} PRIVATE -fno-math-errno -fno-trapping-math -ffp-contract=fast -fno-lto -fno-exceptions
                                            -fasynchronous-unwind-tables ${ARGN})
  string(TOUPPER "${level}" upper)
  target_compile_definitions(${target} PRIVATE OPWRIGHT_HAVE_${upper}=1)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
endfunction()

function(_opwright_isa_levels target sources)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(avx2 -mavx2 -mfma -mf16c)
    _opwright_isa_objects(${target} default 16 "${sources}")
    _opwright_isa_objects(${target} avx2 32 "${sources}" ${avx2})
    _opwright_isa_objects(${target} avx512 64 "${sources}" ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq
                          -mprefer-vector-width=512)
  elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    _opwright_isa_objects(${target} neon 16 "${sources}")
  else()
    message(FATAL_ERROR "opwright: expected an x86-64 or aarch64 processor, but got ${CMAKE_SYSTEM_PROCESSOR}")
  endif()
endfunction()

# ---- the package --------------------------------------------------------------------------------------------------------
function(op_package op)
  cmake_parse_arguments(arg "" "FLAVOUR" "BINDING;CPU_KERNELS;CUDA_SOURCES" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "op_package(${op}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_FLAVOUR MATCHES "^(stable|aten)$")
    message(FATAL_ERROR "op_package(${op}): expected FLAVOUR stable or aten, but got ${arg_FLAVOUR}")
  endif()
  _opwright_find_torch()
  set(target opwright_${op})
  add_library(${target} MODULE ${arg_BINDING} "${OPWRIGHT_SHARED}/src/isa.cpp" "${OPWRIGHT_SHARED}/src/scratch.cpp" "${OPWRIGHT_SHARED}/src/caches.cpp"
              "${OPWRIGHT_SHARED}/src/parallel_torch.cpp"
              "${OPWRIGHT_SHARED}/src/manylinux.cpp" "${OPWRIGHT_SHARED}/src/ceilings.cpp")
  if(OPWRIGHT_SANITIZE)
    target_sources(${target} PRIVATE "${OPWRIGHT_SHARED}/src/sanitizer_probe.cpp")
  endif()
  _opwright_common_flags(${target})
  _opwright_isa_levels(${target} "${arg_CPU_KERNELS};${OPWRIGHT_SHARED}/src/ceilings_kernel.cpp")
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME "_C" SUFFIX ".so")
  if(arg_FLAVOUR STREQUAL "aten")
    _opwright_aten(${target} ${op})
  else()
    target_compile_definitions(${target} PRIVATE TORCH_TARGET_VERSION=${OPWRIGHT_TORCH_FLOOR})
    # The C++ runtime before torch, which exports copies of some of its functions without their versions.
    target_link_libraries(${target} PRIVATE $<$<PLATFORM_ID:Linux>:stdc++> opwright::torch)
  endif()
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    target_link_options(${target} PRIVATE $<$<NOT:$<BOOL:${OPWRIGHT_SANITIZE}>>:-Wl,--no-undefined> -Wl,-z,relro,-z,now -Wl,--gc-sections)
    if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT OPWRIGHT_SANITIZE)
      target_link_options(${target} PRIVATE -s)
    endif()
  endif()

  # Everything a package shares at run time is one Python file, installed into each package, so that packages stand alone.
  install(TARGETS ${target} LIBRARY DESTINATION "opwright/${op}")
  install(FILES "${OPWRIGHT_SHARED}/runtime/_runtime.py" DESTINATION "opwright/${op}")

  _opwright_cuda(${op} ${arg_FLAVOUR} "${arg_CUDA_SOURCES}")
endfunction()
