# 64-bit PCs and servers, with a compiler and a sysroot that may be another's than this machine's.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(RPCSYS_TRIPLE x86_64-linux-gnu)
set(RPCSYS_VENDOR_TRIPLES x86_64*-linux*)
set(RPCSYS_PACKAGES "gcc-x86-64-linux-gnu g++-x86-64-linux-gnu")
include("${CMAKE_CURRENT_LIST_DIR}/cross.cmake")
