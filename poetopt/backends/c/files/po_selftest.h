/* Begins with po_load(), draws a batch, holds what a prediction and a step make of it against what onnxruntime made of
   it, within rounding, and ends with po_load(): what wasn't saved is lost, as after a reset. PO_DAMAGED: parameters or
   constants aren't the first ones (nor are those that were trained on storage and saved), or other numbers come out. */
int po_selftest(void);

