# 32-bit ARM boards with hardware floating point (Debian's armhf): Raspberry Pi 2, BeagleBone, i.MX 6 …
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR armv7l)
set(RPCSYS_TRIPLE arm-linux-gnueabihf)
set(RPCSYS_VENDOR_TRIPLES arm*-linux*eabihf)
set(RPCSYS_PACKAGES "gcc-arm-linux-gnueabihf g++-arm-linux-gnueabihf")
# Vendors' compilers may build for older processors unless they are told.
set(RPCSYS_FLAGS "-march=armv7-a -mfpu=vfpv3-d16 -mfloat-abi=hard")
include("${CMAKE_CURRENT_LIST_DIR}/cross.cmake")
