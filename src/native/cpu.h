// What this processor can do, and whether the operating system lets us.
#pragma once

struct Features {
    bool avx2, avx512, avx512_bf16, amx;  // avx2 with FMA; avx512 with F, BW, DQ and VL; amx with bf16
};
const Features& features();
