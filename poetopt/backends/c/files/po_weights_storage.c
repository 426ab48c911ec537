/* Written by poetopt: first values of parameters and constants of ${model}, which po_weights.bin has; it lies at the
   start of the storage. */

#include <string.h>

#include "po.h"

int po_load(void)
{
    int code = 0;
${copies}${reads}    return code;
}
