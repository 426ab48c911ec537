/* Written by poetopt: first values of parameters and constants of ${model}, in flash. */

#include <string.h>

#include "po.h"

#if defined(__APPLE__)
__asm__(".const_data\n.balign 8\n.globl _po_weights\n_po_weights:\n.incbin \"po_weights.bin\"\n.text\n");
#else
__asm__(".section .rodata.po_weights,\"a\",%progbits\n.balign 8\n.globl po_weights\npo_weights:\n"
        ".incbin \"po_weights.bin\"\n.text\n");
#endif

extern const unsigned char po_weights[];

int po_load(void)
{
    int code = 0;
${copies}${reads}    return code;
}
