/* Calls po_load(), draws a batch, and compares a prediction and a step with the results of onnxruntime, up to rounding.
   It ends with po_load(), so that an unsaved training state is lost, as after a reset. It returns PO_DAMAGED if results
   differ, or if parameters or constants don't have their initial values (for example after training on storage). */
int po_selftest(void);

