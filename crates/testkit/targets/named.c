/* Functions whose names are made anew in a copy of the file: 31 times P, so that any bytes can stand there.
 *
 * Commands on standard input:
 *   quit -> exit status 7; so does the end of input
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline)) int PPPPPPPPPPPPPPPPPPPPPPPPPPPPPPP(int x) {
    __asm__ volatile("nop; nop; nop; nop; nop");
    return x - 1;
}

static void *caller(void *unused) {
    (void)unused;
    for (int i = 0;; i++) {
        PPPPPPPPPPPPPPPPPPPPPPPPPPPPPPP(i & 1);
        usleep(1000);
    }
    return NULL;
}

int main(void) {
    char line[64];
    pthread_t id;
    setvbuf(stdout, NULL, _IOLBF, 0);
    pthread_create(&id, NULL, caller, NULL);
    printf("ready pid=%d\n", getpid());
    while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n")) {
    }
    _exit(7);
}
