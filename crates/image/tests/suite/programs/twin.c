/* A library of which the tests make two. */
int twin(int x) { return x + TWIN; }
