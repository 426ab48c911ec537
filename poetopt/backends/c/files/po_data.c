#if defined(__APPLE__)
__asm__(".const_data\n.balign 8\n.globl _po_${name}\n_po_${name}:\n.incbin \"po_${name}.bin\"\n.text\n");
#else
__asm__(".section .rodata.po_${name},\"a\",%progbits\n.balign 8\n.globl po_${name}\npo_${name}:\n"
        ".incbin \"po_${name}.bin\"\n.text\n");
#endif
