# What the toolchain files share: find the compilers of a target, or say which package has them.
#
#   cmake -S PROJECT -B build --toolchain …/aarch64-linux-gnu.cmake
#       Debian's cross compilers, from the PATH
#   cmake … -DRPCSYS_TOOLCHAIN_ROOT=DIR
#       a vendor's: DIR/bin holds them, under the target's name or one like it (aarch64-none-linux-gnu-gcc)
#   cmake … -DRPCSYS_SYSROOT=DIR
#       headers and libraries from DIR, such as a vendor's SDK, in place of those the compiler knows
#
# The two may also come from the environment. rpcsys/module/toolchain.py finds the same for Python.

# CMake tries a compiler out in projects of their own, which read this again and have to be told, too.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES RPCSYS_TOOLCHAIN_ROOT RPCSYS_SYSROOT)
foreach(name RPCSYS_TOOLCHAIN_ROOT RPCSYS_SYSROOT)
  if(NOT DEFINED ${name} AND DEFINED ENV{${name}})
    set(${name} "$ENV{${name}}")
  endif()
  if(DEFINED ${name})
    get_filename_component(${name} "${${name}}" ABSOLUTE BASE_DIR "${CMAKE_BINARY_DIR}")
    if(NOT IS_DIRECTORY "${${name}}")
      message(FATAL_ERROR "${name}: there is no folder ${${name}}")
    endif()
  endif()
endforeach()

if(DEFINED RPCSYS_TOOLCHAIN_ROOT)
  file(GLOB found "${RPCSYS_TOOLCHAIN_ROOT}/bin/${RPCSYS_TRIPLE}-gcc")
  if(NOT found)
    file(GLOB found "${RPCSYS_TOOLCHAIN_ROOT}/bin/${RPCSYS_VENDOR_TRIPLES}-gcc")
  endif()
  if(NOT found)
    message(FATAL_ERROR
      "there is no ${RPCSYS_VENDOR_TRIPLES}-gcc in ${RPCSYS_TOOLCHAIN_ROOT}/bin; "
      "RPCSYS_TOOLCHAIN_ROOT is the folder above the compilers' bin folder")
  endif()
  list(GET found 0 RPCSYS_CC)
  string(REGEX REPLACE "gcc$" "g++" RPCSYS_CXX "${RPCSYS_CC}")
  list(APPEND CMAKE_FIND_ROOT_PATH "${RPCSYS_TOOLCHAIN_ROOT}")
else()
  set(RPCSYS_CC_NAMES ${RPCSYS_TRIPLE}-gcc)
  set(RPCSYS_CXX_NAMES ${RPCSYS_TRIPLE}-g++)
  if(CMAKE_HOST_SYSTEM_PROCESSOR STREQUAL CMAKE_SYSTEM_PROCESSOR)
    # This machine's own target: a compiler without a prefix builds for it.
    list(APPEND RPCSYS_CC_NAMES gcc)
    list(APPEND RPCSYS_CXX_NAMES g++)
    set(RPCSYS_PACKAGES "gcc g++")
  endif()
  find_program(RPCSYS_CC NAMES ${RPCSYS_CC_NAMES} NAMES_PER_DIR)
  find_program(RPCSYS_CXX NAMES ${RPCSYS_CXX_NAMES} NAMES_PER_DIR)
  if(NOT RPCSYS_CC OR NOT RPCSYS_CXX)
    message(FATAL_ERROR
      "there is no ${RPCSYS_TRIPLE}-gcc and -g++ here; type: sudo apt-get install ${RPCSYS_PACKAGES} "
      "(or name a vendor's toolchain: -DRPCSYS_TOOLCHAIN_ROOT=DIR)")
  endif()
  list(APPEND CMAKE_FIND_ROOT_PATH "/usr/${RPCSYS_TRIPLE}")
endif()

set(CMAKE_C_COMPILER "${RPCSYS_CC}")
set(CMAKE_CXX_COMPILER "${RPCSYS_CXX}")
string(APPEND CMAKE_C_FLAGS_INIT " ${RPCSYS_FLAGS}")
string(APPEND CMAKE_CXX_FLAGS_INIT " ${RPCSYS_FLAGS}")
set(CMAKE_C_STANDARD_LIBRARIES_INIT "${RPCSYS_LIBRARIES}")
set(CMAKE_CXX_STANDARD_LIBRARIES_INIT "${RPCSYS_LIBRARIES}")
if(DEFINED RPCSYS_SYSROOT)
  set(CMAKE_SYSROOT "${RPCSYS_SYSROOT}")
endif()

# Tools are this machine's; headers and libraries are the target's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
