# llama.cpp as the imported target terrace_llama_cpp, from TERRACE_LLAMA_ROOT. Sets TERRACE_HAVE_LLAMA.
#
# TERRACE_LLAMA=AUTO uses it if it is there, ON insists, OFF does without.

set(TERRACE_HAVE_LLAMA FALSE)
if(TERRACE_LLAMA STREQUAL "OFF")
  return()
endif()

set(missing)
foreach(file include/llama.h include/ggml.h lib/libllama.a lib/libggml.a lib/libggml-cpu.a lib/libggml-base.a)
  if(NOT EXISTS ${TERRACE_LLAMA_ROOT}/${file})
    list(APPEND missing ${file})
  endif()
endforeach()
if(missing)
  list(JOIN missing ", " missing)
  if(TERRACE_LLAMA STREQUAL "ON")
    message(FATAL_ERROR "TERRACE_LLAMA is ON, but ${TERRACE_LLAMA_ROOT} has no ${missing}.\n"
      "Run scripts/get_llama, which puts llama.cpp there, or set TERRACE_LLAMA_ROOT or TERRACE_LLAMA=OFF.")
  endif()
  message(STATUS "llama.cpp: not in ${TERRACE_LLAMA_ROOT} (scripts/get_llama gets it); apps/llama is left out")
  return()
endif()

add_library(terrace_llama_cpp STATIC IMPORTED)
set_target_properties(terrace_llama_cpp PROPERTIES
  IMPORTED_LOCATION ${TERRACE_LLAMA_ROOT}/lib/libllama.a
  # Also for imported targets these are SYSTEM by default: its headers are not held to our warnings.
  INTERFACE_INCLUDE_DIRECTORIES ${TERRACE_LLAMA_ROOT}/include)
# Each needs the ones behind it.
target_link_libraries(terrace_llama_cpp INTERFACE
  ${TERRACE_LLAMA_ROOT}/lib/libggml.a ${TERRACE_LLAMA_ROOT}/lib/libggml-cpu.a
  ${TERRACE_LLAMA_ROOT}/lib/libggml-base.a Threads::Threads ${CMAKE_DL_LIBS} m)

# scripts/get_llama builds with g++ and OpenMP; the code then needs GCC's runtime, whoever links (clang finds it too).
file(STRINGS ${TERRACE_LLAMA_ROOT}/lib/libggml-cpu.a openmp REGEX "GOMP_parallel" LIMIT_COUNT 1)
if(openmp)
  target_link_libraries(terrace_llama_cpp INTERFACE gomp)
endif()

set(TERRACE_HAVE_LLAMA TRUE)
message(STATUS "llama.cpp: ${TERRACE_LLAMA_ROOT}")
