# Warnings and sanitizers sit in targets that are linked PRIVATE, so that nothing of them reaches a program that uses Terrace.

add_library(terrace_warnings INTERFACE)
target_compile_options(terrace_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Werror=thread-safety -Werror=unused-result>
  $<$<BOOL:${TERRACE_WERROR}>:-Werror>)

add_library(terrace_sanitize INTERFACE)
if(TERRACE_SANITIZE)
  target_compile_options(terrace_sanitize INTERFACE
    -fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  string(REPLACE "fuzzer-no-link" "" link_sanitizers "${TERRACE_SANITIZE}")
  string(REGEX REPLACE "^,|,$" "" link_sanitizers "${link_sanitizers}")
  target_link_options(terrace_sanitize INTERFACE -fsanitize=${link_sanitizers})
endif()

# What tests are compiled with: little optimisation, in half the time; what they test keeps its own. (The last option
# counts.)
add_library(terrace_test_options INTERFACE)
target_link_libraries(terrace_test_options INTERFACE terrace_warnings terrace_sanitize)
if(TERRACE_SANITIZE)
  target_compile_options(terrace_test_options INTERFACE -O0)
else()
  target_compile_options(terrace_test_options INTERFACE $<$<CONFIG:RelWithDebInfo>:-O1;-g1>)
endif()

# terrace_add_test(NAME SOURCES... [LIBRARIES ...] [LABELS ...]): one GoogleTest program, one ctest entry.
function(terrace_add_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  # The thread sanitizer has nothing to say about a test without threads.
  set(left_out "")
  if(TERRACE_SANITIZE MATCHES "thread" AND NOT "threads" IN_LIST ARG_LABELS)
    set(left_out EXCLUDE_FROM_ALL)
  endif()
  add_executable(${name} ${left_out} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE terrace ${ARG_LIBRARIES} terrace_internal_deps
    terrace_test_options GTest::gmock GTest::gtest_main)
  if(left_out)
    return()
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300)
endfunction()

# Every src/**/<thing>_test.cc is a unit test of its own, beside the code that it tests.
function(terrace_add_unit_tests)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/src
       ${PROJECT_SOURCE_DIR}/src/*_test.cc)
  foreach(source IN LISTS sources)
    string(REGEX REPLACE "_test\\.cc$" "" name ${source})
    string(REPLACE "/" "." name ${name})
    set(labels unit)
    file(STRINGS ${PROJECT_SOURCE_DIR}/src/${source} threads
         REGEX "std::thread|std::async|StartThread|ControlThread|IoPool|FileTier" LIMIT_COUNT 1)
    if(threads)
      list(APPEND labels threads)
    endif()
    terrace_add_test(${name} SOURCES ${PROJECT_SOURCE_DIR}/src/${source} LABELS ${labels})
  endforeach()
endfunction()
