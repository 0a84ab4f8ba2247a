# 64-bit ARM boards: Raspberry Pi 3 to 5, Jetson, RK3588, i.MX 8 …
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(RPCSYS_TRIPLE aarch64-linux-gnu)
set(RPCSYS_VENDOR_TRIPLES aarch64*-linux*)
set(RPCSYS_PACKAGES "gcc-aarch64-linux-gnu g++-aarch64-linux-gnu")
include("${CMAKE_CURRENT_LIST_DIR}/cross.cmake")
