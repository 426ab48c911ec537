/* Written by poetopt: the RAM of ${model}, and the addresses of its tensors. */

#include <string.h>

#include "po.h"

/* Separate sections, so that a linker script can place them. They needn't be cleared. */
#if defined(__GNUC__) && !defined(__APPLE__)
#define PO_PLACE(name) __attribute__((section(name)))
#else
#define PO_PLACE(name)
#endif

PO_PLACE(".bss.po_arena") unsigned char po_arena[PO_ARENA_BYTES];
PO_PLACE(".bss.po_resident") unsigned char po_resident[PO_RESIDENT_BYTES];

const po_tensor po_inputs[] = {
${inputs}};

const po_tensor po_results[] = {
${results}};

const po_tensor po_parameters[] = {
${parameters}};

const po_tensor po_hyperparameters[] = {
${hyperparameters}};

${predicts}void po_carry(void)
{
${carried}}
