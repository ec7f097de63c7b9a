/* What gpu-align asks of the kernel and of Slurm on a node of eight cards, without a line of its
 * logic: what the calls themselves cost. */
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <slurm/spank.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(same_calls, 1)

#define CARDS 8
#define NODE "/dev/nvidia%d"
#define UUID "GPU-00000000-0008-4000-8000-000000000000"

static atomic_int *done; /* shared by the tasks */
static int task_log = -1;
static int forked;
static uint32_t tasks;

static void read_file(const char *path)
{
    char text[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    while (fd >= 0 && read(fd, text, sizeof(text)) > 0)
        ;
    close(fd);
}

static void read_all(const char *pattern)
{
    glob_t found;

    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
        for (size_t n = 0; n < found.gl_pathc; n++)
            read_file(found.gl_pathv[n]);
    globfree(&found);
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    char path[256];
    struct stat stat_of;
    const char *conf = getenv("SLURM_CONF");

    (void)argc, (void)argv;
    if (spank_context() != S_CTX_REMOTE)
        return 0;
    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks);
    read_all("/proc/driver/nvidia/gpus/*/information");
    read_all("/sys/bus/pci/devices/*/numa_node");
    read_file(conf);
    snprintf(path, sizeof(path), "%.*sgres.conf", (int)(strlen(conf) - strlen("slurm.conf")), conf);
    read_file(path);
    for (int card = 0; card < CARDS; card++) {
        snprintf(path, sizeof(path), "/proc/driver/nvidia/capabilities/gpu%d/mig", card);
        stat(path, &stat_of);
        snprintf(path, sizeof(path), NODE, card);
        stat(path, &stat_of);
    }
    return 0;
}

int slurm_spank_user_init(spank_t spank, int argc, char **argv)
{
    (void)spank, (void)argc, (void)argv;
    done = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    task_log = fcntl(2, F_DUPFD_CLOEXEC, 3);
    return 0;
}

int slurm_spank_task_post_fork(spank_t spank, int argc, char **argv)
{
    (void)spank, (void)argc, (void)argv;
    if (++forked == (int)tasks) /* or the stream would never end */
        close(task_log);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    static const char *const asked[] = {"SLURMD_TRES_BIND", "CUDA_DEVICE_ORDER", "SLURM_PROCID"};
    static const char *const set[] = {"CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "A", "B", "C", "D"};
    char value[4096];

    (void)argc, (void)argv;
    for (int card = 0; card < CARDS; card++) {
        snprintf(value, sizeof(value), NODE, card);
        faccessat(AT_FDCWD, value, R_OK | W_OK, 0);
    }
    for (int n = 0; n < 3; n++)
        spank_getenv(spank, asked[n], value, sizeof(value));
    for (int n = 0; n < 6; n++)
        spank_setenv(spank, set[n], UUID "," UUID "," UUID, 1);
    if (atomic_fetch_add(done, 1) == (int)tasks - 1) {
        struct pollfd ask = {task_log, POLLOUT, 0};

        memset(value, '-', 1200);
        value[1199] = '\n';
        if (poll(&ask, 1, 1000) == 1)
            (void)!write(task_log, value, 1200);
    }
    return 0;
}
