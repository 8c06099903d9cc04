# The ATen flavour: a library that may use all of torch's C++ interface and therefore fits one minor version of torch.

# Links `target` against torch's C++ libraries and installs which minor version of torch it was built for: loading reads it
# (runtime/_runtime.py) and refuses another.
function(_opwright_aten target op)
  set(libraries "")
  foreach(name torch torch_cpu c10)
    find_library(_opwright_${name} ${name} PATHS "${OPWRIGHT_TORCH_lib}" NO_DEFAULT_PATH REQUIRED NO_CACHE)
    list(APPEND libraries "${_opwright_${name}}")
    unset(_opwright_${name})
  endforeach()
  # The C++ runtime before torch, which exports copies of some of its functions without their versions.
  target_link_libraries(${target} PRIVATE $<$<PLATFORM_ID:Linux>:stdc++> opwright::torch ${libraries})
  # Both sides of torch's C++ interface must agree on the layout of the standard library's types.
  target_compile_definitions(${target} PRIVATE _GLIBCXX_USE_CXX11_ABI=1)

  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${OPWRIGHT_TORCH_version}")
  set(built_for "${CMAKE_CURRENT_BINARY_DIR}/_built_for.py")
  file(CONFIGURE OUTPUT "${built_for}" CONTENT
    "\"\"\"Written by the build: the one minor version of torch that the library fits.\"\"\"\n\nTORCH = \"${minor}\"\n")
  install(FILES "${built_for}" DESTINATION "opwright/${op}")
endfunction()
