/* The functions that Slurm offers to SPANK plugins. Each one hands over to the host (slurm.rs)
 * what a variadic call cannot carry into Rust. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

struct host {
	int (*context)(void);
	int (*get_item)(void *spank, int item, void *to);
	int (*get_variable)(void *spank, const char *name, char *to, int room);
	int (*set_variable)(void *spank, const char *name, const char *value, int overwrite);
	int (*unset_variable)(void *spank, const char *name);
	int (*option_register)(void *spank, const void *option);
	void (*say)(int level, const char *text);
	long (*api_version)(void);
};

static const struct host *host;

void spank_host_install(const struct host *table)
{
	host = table;
}

long slurm_api_version(void)
{
	return host->api_version();
}

int spank_context(void)
{
	return host->context();
}

/* Only items with one argument, a pointer: the host refuses the others. */
int spank_get_item(void *spank, int item, ...)
{
	va_list list;
	void *to;

	va_start(list, item);
	to = va_arg(list, void *);
	va_end(list);
	return host->get_item(spank, item, to);
}

int spank_getenv(void *spank, const char *name, char *to, int room)
{
	return host->get_variable(spank, name, to, room);
}

int spank_setenv(void *spank, const char *name, const char *value, int overwrite)
{
	return host->set_variable(spank, name, value, overwrite);
}

int spank_unsetenv(void *spank, const char *name)
{
	return host->unset_variable(spank, name);
}

int spank_option_register(void *spank, const void *option)
{
	return host->option_register(spank, option);
}

#define SAY(name, level)                                     \
	void name(const char *format, ...)                   \
	{                                                    \
		va_list list;                                \
		char *text = NULL;                           \
                                                             \
		va_start(list, format);                      \
		if (vasprintf(&text, format, list) >= 0) {   \
			host->say(level, text);              \
			free(text);                          \
		}                                            \
		va_end(list);                                \
	}

SAY(slurm_spank_log, 0)
SAY(slurm_error, 1)
SAY(slurm_info, 2)
SAY(slurm_verbose, 3)
SAY(slurm_debug, 4)
SAY(slurm_debug2, 5)
SAY(slurm_debug3, 6)
