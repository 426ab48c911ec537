/* Prediction in the same RAM, with running statistics and without Dropout, labels and loss. Write po_predict_inputs, call
   po_predict between two steps, and read po_outputs. It keeps the training state, and overwrites inputs and results of
   the step. */
extern const po_tensor po_predict_inputs[];
extern const po_tensor po_outputs[];
int po_predict(void);

