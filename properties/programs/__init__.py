"""Programs: an implementation on a mesh, as a function of global arrays, and transformations around it."""
