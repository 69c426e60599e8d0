package tables

// Path is where a value stands.
var Path = path
