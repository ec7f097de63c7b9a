/* Prints the time at which main() was reached, in nanoseconds. */
#include <stdio.h>
#include <time.h>

int main(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    printf("%lld%09ld\n", (long long)now.tv_sec, now.tv_nsec);
    return 0;
}
