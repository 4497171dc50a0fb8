// libcrypto's assembly and libc's, with a signal handler that may interrupt either. No header of libcrypto is needed.
#include <dlfcn.h>
#include <regex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *handle;
static volatile unsigned sink;
static void handler(int s) { sink += (unsigned)s; }

static void *lib;
static void *find(const char *name) {
    void *f = dlsym(lib, name);
    if (!f) exit(3);
    return f;
}
static int compare(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void digests(unsigned char *data, size_t len) {
    handle (*get)(const char *) = find("EVP_get_digestbyname");
    int (*digest)(const void *, size_t, unsigned char *, unsigned *, handle, handle) = find("EVP_Digest");
    const char *names[] = {"SHA1", "SHA256", "SHA512", "SHA3-256", "MD5", "BLAKE2b512"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        unsigned char out[64];
        unsigned n = 0;
        handle type = get(names[i]);
        if (type) digest(data, len, out, &n, type, NULL);
        sink += out[0] + n;
    }
}

static void ciphers(unsigned char *data, size_t len) {
    handle (*get)(const char *) = find("EVP_get_cipherbyname");
    handle (*make)(void) = find("EVP_CIPHER_CTX_new");
    void (*drop)(handle) = find("EVP_CIPHER_CTX_free");
    int (*init)(handle, handle, handle, const unsigned char *, const unsigned char *) = find("EVP_EncryptInit_ex");
    int (*update)(handle, unsigned char *, int *, const unsigned char *, int) = find("EVP_EncryptUpdate");
    const char *names[] = {"AES-128-CBC", "AES-256-CTR", "AES-128-GCM", "ChaCha20-Poly1305", "CAMELLIA-128-CBC"};
    static unsigned char key[64], iv[32], out[8192];
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        handle type = get(names[i]), c = make();
        int n = 0;
        if (type && init(c, type, NULL, key, iv)) update(c, out, &n, data, (int)len);
        sink += out[1] + (unsigned)n;
        drop(c);
    }
}

static void numbers(unsigned bits) {
    handle (*make)(void) = find("BN_new");
    handle (*context)(void) = find("BN_CTX_new");
    int (*set)(handle, unsigned long) = find("BN_set_word");
    int (*shift)(handle, const void *, int) = find("BN_lshift");
    int (*power)(handle, handle, handle, handle, handle) = find("BN_mod_exp");
    int (*mul)(handle, handle, handle, handle) = find("BN_mul");
    handle a = make(), b = make(), m = make(), r = make(), c = context();
    set(a, 0x123456789abcdef1), set(b, 65537), set(m, 0xfedcba9876543211);
    shift(a, a, (int)bits), shift(m, m, (int)bits), shift(b, b, 40);
    // An odd modulus goes another way than an even one.
    int (*add)(handle, unsigned long) = find("BN_add_word");
    add(m, 1);
    power(r, a, b, m, c);
    mul(r, a, m, c);
    void (*drop)(handle) = find("BN_free");
    drop(a), drop(b), drop(m), drop(r);
}

static void curves(void) {
    handle (*generate)(handle, const char *, const char *, ...) = find("EVP_PKEY_Q_keygen");
    void (*drop)(handle) = find("EVP_PKEY_free");
    drop(generate(NULL, NULL, "EC", "P-256"));
    drop(generate(NULL, NULL, "X25519"));
}

static void text(unsigned n) {
    char line[300], *words[40];
    regex_t expression;
    regmatch_t found[3];
    snprintf(line, sizeof line, "%u some words of %8.3f and %s at %p", n, (n + 0.5) * 1e10, "a string", (void *)line);
    regcomp(&expression, "([a-z]+) of +([0-9.]+)", REG_EXTENDED);
    sink += (unsigned)regexec(&expression, line, 3, found, 0);
    regfree(&expression);
    unsigned count = 0;
    for (char *word = strtok(line, " "); word && count < 40; word = strtok(NULL, " ")) words[count++] = word;
    qsort(words, count, sizeof *words, compare);
    time_t now = 1700000000 + (time_t)n * 86400;
    struct tm at;
    strftime(line, sizeof line, "%c", gmtime_r(&now, &at));
    sink += (unsigned)strtod(words[0], NULL) + (unsigned)strlen(line);
}

int main(int argc, char **argv) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    lib = dlopen("libcrypto.so.3", RTLD_NOW);
    if (!lib) return 2;
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
    static unsigned char data[4096];
    for (unsigned n = 0; n < rounds; n++) {
        memset(data, (int)n, sizeof data);
        text(n);
        digests(data, 200 + n % 3000);
        ciphers(data, 300 + n % 3000);
        numbers(448 + n % 4 * 64);
        if (n % 8 == 0) curves();
    }
    printf("%d\n", sink > 0);
    return 0;
}
