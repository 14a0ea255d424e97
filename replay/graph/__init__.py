"""`KernelGraph`: tasks, edges and what each task demands."""
