/* The least that a plugin for a task's environment does: reads a variable and sets one. */
#include <slurm/spank.h>

SPANK_PLUGIN(trivial, 1)

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    char value[4096];

    (void)argc, (void)argv;
    if (spank_getenv(spank, "CUDA_VISIBLE_DEVICES", value, sizeof(value)) == ESPANK_SUCCESS)
        spank_setenv(spank, "TRIVIAL", value, 1);
    return ESPANK_SUCCESS;
}
