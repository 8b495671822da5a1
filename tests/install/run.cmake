# Installs Terrace into an empty prefix, builds examples/ against it as a stranger would, and runs each example.
#   cmake -DSOURCE_DIR=... -DBUILD_DIR=... -DWORK_DIR=... -DCXX=... -P run.cmake
# BUILD_DIR is the build tree to install; without one, a shared library is built for the purpose.
file(REMOVE_RECURSE ${WORK_DIR})

function(run)
  list(JOIN ARGN " " command)
  message(STATUS "${command}")
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${command}: ${status}")
  endif()
endfunction()

if(NOT BUILD_DIR)
  set(BUILD_DIR ${WORK_DIR}/shared)
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${BUILD_DIR} -G Ninja -DCMAKE_CXX_COMPILER=${CXX}
    -DBUILD_SHARED_LIBS=ON  # Without a build type: what is not optimised is soon built.
    -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
  run(${CMAKE_COMMAND} --build ${BUILD_DIR} --parallel 2)
endif()

run(${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${WORK_DIR}/prefix)
# A public header that includes another library's would make users depend on it.
file(GLOB headers ${WORK_DIR}/prefix/include/terrace/*.h)
foreach(header IN LISTS headers)
  file(STRINGS ${header} foreign REGEX "^#include *[<\"](spdlog|fmt|nlohmann|openssl|xxhash|CLI|base)[/.]")
  if(foreign)
    message(FATAL_ERROR "${header}: ${foreign}")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples -B ${WORK_DIR}/examples -G Ninja -DCMAKE_CXX_COMPILER=${CXX}
  -DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix -DCMAKE_RUNTIME_OUTPUT_DIRECTORY=${WORK_DIR}/bin)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/examples --parallel 2)
file(GLOB programs ${WORK_DIR}/bin/*)
if(NOT programs)
  message(FATAL_ERROR "no example was built")
endif()
foreach(program IN LISTS programs)
  run(${program})
endforeach()

# A plug-in, which needs the header and nothing else, in a program that knows nothing of it.
run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/examples/plugin_tier -B ${WORK_DIR}/plugin_tier -G Ninja
  -DCMAKE_CXX_COMPILER=${CXX} -DTERRACE_INCLUDE_DIR=${WORK_DIR}/prefix/include
  -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${WORK_DIR}/plugins)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/plugin_tier)
file(WRITE ${WORK_DIR}/node.json "{\"cpu_bytes_to_use\": \"1MiB\", \"secondary_tiers\": [{\"type\": \"plugin\",
  \"library\": \"${WORK_DIR}/plugins/libshelf_tier.so\", \"options\": {\"max_chunks\": 100}}]}")
run(${WORK_DIR}/bin/embed ${WORK_DIR}/node.json)
if(EXISTS ${WORK_DIR}/prefix/bin/terrace)
  run(${WORK_DIR}/prefix/bin/terrace config check ${WORK_DIR}/node.json)
endif()
