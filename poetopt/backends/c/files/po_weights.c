/* Written by poetopt: initial values of parameters and constants of ${model}, in flash. */

#include <string.h>

#include "po.h"

${data}
extern const unsigned char po_weights[];

int po_load(void)
{
    int code = 0;
${copies}${reads}    return code;
}
