/* Written by poetopt: constants of ${model}, which stay in flash. */

#include "po.h"

#if defined(__APPLE__)
__asm__(".const_data\n.balign 8\n.globl _po_flash\n_po_flash:\n.incbin \"po_flash.bin\"\n.text\n");
#else
__asm__(".section .rodata.po_flash,\"a\",%progbits\n.balign 8\n.globl po_flash\npo_flash:\n"
        ".incbin \"po_flash.bin\"\n.text\n");
#endif
