// Asked of the processor itself (cpuid) and of the system (xgetbv: are the registers saved when threads switch?).
#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace {

struct Leaf {
    uint32_t a = 0, b = 0, c = 0, d = 0;
    Leaf(uint32_t leaf, uint32_t sub) { __get_cpuid_count(leaf, sub, &a, &b, &c, &d); }
};
bool bit(uint32_t word, int n) { return word >> n & 1; }

uint64_t saved_registers() {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t{high} << 32 | low;
}

// Linux gives tile registers to those who ask: ARCH_REQ_XCOMP_PERM for XTILEDATA.
bool tiles_permitted() {
#if defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
    return false;
#endif
}

Features ask() {
    Features found{};
    const Leaf one(1, 0), seven(7, 0), seven_one(7, 1);
    if (!bit(one.c, 27)) return found;  // no xgetbv
    const uint64_t saved = saved_registers();
    const bool ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xe6) == 0xe6, tiles = (saved & 0x60000) == 0x60000;
    found.avx2 = ymm && bit(one.c, 12) && bit(seven.b, 5);
    found.avx512 = found.avx2 && zmm && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) && bit(seven.b, 31);
    found.avx512_bf16 = found.avx512 && bit(seven_one.a, 5);
    found.amx = found.avx512_bf16 && tiles && bit(seven.d, 22) && bit(seven.d, 24) && tiles_permitted();
    return found;
}

}  // namespace

const Features& features() {
    static const Features found = ask();
    return found;
}
#else
const Features& features() {
    static const Features none{};
    return none;
}
#endif
