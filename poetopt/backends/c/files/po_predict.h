/* The network as it is used, in the same RAM: by running statistics, without Dropout, labels or loss. Write
   po_predict_inputs, call it between two steps, and read po_outputs. What lasts stays as it is; inputs and results of a
   step are lost. */
extern const po_tensor po_predict_inputs[];
extern const po_tensor po_outputs[];
int po_predict(void);

