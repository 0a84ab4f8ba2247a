# 64-bit RISC-V boards (rv64gc): VisionFive 2, BeagleV, Milk-V …
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(RPCSYS_TRIPLE riscv64-linux-gnu)
set(RPCSYS_VENDOR_TRIPLES riscv64*-linux*)
set(RPCSYS_PACKAGES "gcc-riscv64-linux-gnu g++-riscv64-linux-gnu")
# Before gcc 13, atomics of one and two bytes are functions. Linked in: not every board has libatomic.so.1.
set(RPCSYS_LIBRARIES "-l:libatomic.a")
include("${CMAKE_CURRENT_LIST_DIR}/cross.cmake")
