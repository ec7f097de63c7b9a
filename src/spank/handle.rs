//! What a hook can ask Slurm and tell it, as safe Rust.
//!
//! A [`Spank`] exists only while the hook it was made for runs. Nothing that comes from the job
//! (its environment is the user's to choose) can make these calls panic, hang or grow without
//! bound: values are cut off at [`VALUE_LIMIT`], bytes that are no UTF-8 become U+FFFD.

use std::ffi::{CStr, CString, c_char, c_int};
use std::marker::PhantomData;

use super::bindings::{
    self, S_JOB_ID, S_JOB_LOCAL_TASK_COUNT, S_JOB_STEPID, S_TASK_GLOBAL_ID, S_TASK_ID,
    spank_item_t, spank_t,
};
use super::calls::{self, SpankError, answer};
use super::option::SpankOption;

/// The longest value of a variable that is read, in bytes. 100,000 device numbers do not fit, and
/// no node has them.
pub const VALUE_LIMIT: usize = 64 * 1024;

/// The program that the plugin was loaded into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// srun.
    Local,
    /// slurmstepd.
    Remote,
    /// sbatch or salloc.
    Allocator,
    /// slurmd itself.
    Slurmd,
    /// Prolog or Epilog, run by slurmd.
    JobScript,
    /// Slurm could not say.
    Error,
}

/// Slurm's handle for the job, step or task that a hook runs for.
pub struct Spank<'hook> {
    raw: spank_t,
    hook: PhantomData<&'hook ()>,
}

impl Spank<'_> {
    /// # Safety
    /// `raw` must be the handle that Slurm gave to the hook now running, and the value must not
    /// outlive that hook.
    pub(super) unsafe fn new(raw: spank_t) -> Self {
        Self { raw, hook: PhantomData }
    }

    /// The program that the plugin was loaded into.
    pub fn context(&self) -> Context {
        let Ok(call) = calls::CONTEXT.get() else {
            return Context::Error;
        };
        // SAFETY: spank_context takes nothing and reads Slurm's own state.
        match unsafe { call() } {
            bindings::S_CTX_LOCAL => Context::Local,
            bindings::S_CTX_REMOTE => Context::Remote,
            bindings::S_CTX_ALLOCATOR => Context::Allocator,
            bindings::S_CTX_SLURMD => Context::Slurmd,
            bindings::S_CTX_JOB_SCRIPT => Context::JobScript,
            _ => Context::Error,
        }
    }

    /// A variable of the job's environment, or of the task's inside a task. `None`: not set.
    ///
    /// Only in slurmstepd; in srun, sbatch and salloc the environment is the process's own.
    pub fn getenv(&self, name: &CStr) -> Result<Option<String>, SpankError> {
        // A task's first large allocation costs it hundreds of page faults: few values need one.
        match self.getenv_into(name, &mut [0; 1024]) {
            Err(why) if why.is_no_space() => {}
            settled => return settled,
        }
        match self.getenv_into(name, &mut vec![0; VALUE_LIMIT]) {
            Err(why) if why.is_no_space() => Err(SpankError::TooLong {
                name: name.to_string_lossy().into_owned(),
                limit: VALUE_LIMIT,
            }),
            settled => settled,
        }
    }

    fn getenv_into(&self, name: &CStr, room: &mut [u8]) -> Result<Option<String>, SpankError> {
        let call = calls::GETENV.get()?;
        let length = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
        // SAFETY: `raw` is this hook's handle, `name` a C string, and the buffer holds `length`
        // bytes that Slurm may write.
        let code = unsafe { call(self.raw, name.as_ptr(), room.as_mut_ptr().cast(), length) };
        match answer(calls::GETENV.name(), code) {
            Ok(()) => {}
            Err(why) if why.is_unset() => return Ok(None),
            Err(why) => return Err(why),
        }
        let end = room.iter().position(|&byte| byte == 0).unwrap_or(room.len());
        Ok(Some(String::from_utf8_lossy(&room[..end]).into_owned()))
    }

    /// Sets a variable of the job's or task's environment, over any value that it has.
    pub fn setenv(&self, name: &CStr, value: &CStr) -> Result<(), SpankError> {
        let call = calls::SETENV.get()?;
        // SAFETY: `raw` is this hook's handle; both texts are C strings that Slurm copies.
        let code = unsafe { call(self.raw, name.as_ptr(), value.as_ptr(), 1) };
        answer(calls::SETENV.name(), code)
    }

    /// Looks up, before tasks are forked, what only they call, so that each need not do it again.
    pub fn prepare_tasks(&self) {
        let _ = calls::SETENV.get();
    }

    /// The job's number.
    pub fn job_id(&self) -> Result<u32, SpankError> {
        // SAFETY: spank.h: S_JOB_ID takes uint32_t *.
        unsafe { self.item(S_JOB_ID, 0_u32) }
    }

    /// The step's number, or one of Slurm's special ones (0xfffffffb batch, 0xfffffffc extern).
    pub fn step_id(&self) -> Result<u32, SpankError> {
        // SAFETY: spank.h: S_JOB_STEPID takes uint32_t *.
        unsafe { self.item(S_JOB_STEPID, 0_u32) }
    }

    /// How many tasks of the step this node runs.
    pub fn local_task_count(&self) -> Result<u32, SpankError> {
        // SAFETY: spank.h: S_JOB_LOCAL_TASK_COUNT takes uint32_t *.
        unsafe { self.item(S_JOB_LOCAL_TASK_COUNT, 0_u32) }
    }

    /// The task's local rank. Right in every task hook, where SLURM_LOCALID can be stale.
    pub fn task_id(&self) -> Result<u32, SpankError> {
        // SAFETY: spank.h: S_TASK_ID takes int *.
        let id: c_int = unsafe { self.item(S_TASK_ID, 0) }?;
        u32::try_from(id).map_err(|_| SpankError::Refused {
            call: calls::GET_ITEM.name(),
            code: bindings::ESPANK_NOT_TASK,
        })
    }

    /// The task's rank in the whole step.
    pub fn task_global_id(&self) -> Result<u32, SpankError> {
        // SAFETY: spank.h: S_TASK_GLOBAL_ID takes uint32_t *.
        unsafe { self.item(S_TASK_GLOBAL_ID, 0_u32) }
    }

    /// Makes an option known to srun, sbatch, salloc or slurmstepd. Only in `init`.
    pub(super) fn register_option(&self, option: &'static SpankOption) -> Result<(), SpankError> {
        let call = calls::OPTION_REGISTER.get()?;
        // SAFETY: `raw` is this hook's handle; the option and its texts live as long as the file.
        let code = unsafe { call(self.raw, option.as_ptr()) };
        answer(calls::OPTION_REGISTER.name(), code)
    }

    /// # Safety
    /// spank.h must say that `item` takes exactly one argument, a pointer to a `T`.
    unsafe fn item<T: Copy>(&self, item: spank_item_t, unset: T) -> Result<T, SpankError> {
        let call = calls::GET_ITEM.get()?;
        let mut value = unset;
        // SAFETY: `raw` is this hook's handle, and the caller vouches for the argument's type.
        let code = unsafe { call(self.raw, item, &raw mut value) };
        answer(calls::GET_ITEM.name(), code)?;
        Ok(value)
    }
}

/// Keeps the place in the heap that Slurm's setenv writes into.
///
/// For every variable Slurm (22.05) takes and clears 256 KiB, and gives them back. Slurm itself
/// sets many before `task_init`, so a free block of that size waits there, its pages present. A
/// small allocation that was carved out of it would have every task clear, and so page in, a new
/// one: 50 page faults, several times the rest of a hook's work. Take this before the first
/// allocation, drop it before the first setenv. Where Slurm does it otherwise this costs nothing
/// but a malloc that nobody writes into.
pub struct SetenvRoom(#[expect(dead_code, reason = "held, never read")] Vec<u8>);

impl SetenvRoom {
    /// ENV_BUFSIZE of Slurm's src/common/env.h and the head of its xmalloc.
    const BYTES: usize = 256 * 1024 + 16;

    /// Takes the block.
    #[expect(clippy::new_without_default, reason = "to take something is no default")]
    pub fn new() -> Self {
        // The optimiser may leave out an allocation that nobody looks at.
        Self(std::hint::black_box(Vec::with_capacity(Self::BYTES)))
    }
}

/// The arguments of the plugin's line in plugstack.conf.
///
/// # Safety
/// `texts` must be NULL or point to `count` pointers, each NULL or a C string.
pub(super) unsafe fn arguments(count: c_int, texts: *const *mut c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0);
    if texts.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller vouches for `count` pointers.
    let texts = unsafe { std::slice::from_raw_parts(texts, count) };
    texts
        .iter()
        .filter(|text| !text.is_null())
        // SAFETY: not NULL, so the caller vouches for a C string.
        .map(|&text| unsafe { CStr::from_ptr(text) })
        .map(|text| text.to_string_lossy().into_owned())
        .collect()
}

/// Says something, line by line, without "error: " in front: in srun, sbatch and salloc on the
/// terminal, in `user_init` and `task_init` in the task's own stderr.
pub(super) fn log(text: &str) {
    say(calls::SPANK_LOG.get().or_else(|_| calls::INFO.get()), text);
}

/// The same with Slurm's "error: " in front.
pub fn error(text: &str) {
    say(calls::ERROR.get().or_else(|_| calls::INFO.get()), text);
}

/// For slurmd's log at debug level; never for the user.
pub(super) fn debug(text: &str) {
    say(calls::DEBUG.get(), text);
}

type Say = unsafe extern "C" fn(*const c_char, ...);

fn say(call: Result<Say, SpankError>, text: &str) {
    let Ok(say) = call else {
        return;
    };
    for line in text.lines() {
        let line = CString::new(line.replace('\0', "\u{fffd}")).unwrap_or_default();
        // SAFETY: the format takes one C string, and `line` is one.
        unsafe { say(c"%s".as_ptr(), line.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_slurm_every_call_is_missing_and_none_panics() {
        // SAFETY: the handle is never dereferenced: this program has no spank_* functions.
        let spank = unsafe { Spank::new(std::ptr::null_mut()) };
        assert_eq!(spank.context(), Context::Error);
        assert_eq!(spank.getenv(c"PATH"), Err(SpankError::Missing("spank_getenv")));
        assert_eq!(spank.setenv(c"A", c"b"), Err(SpankError::Missing("spank_setenv")));
        assert_eq!(spank.job_id(), Err(SpankError::Missing("spank_get_item")));
        log("nobody hears this");
    }

    #[test]
    fn arguments_survive_null_and_garbage() {
        let mut good = *b"default=single\0";
        let mut bad = *b"gres\xff\0";
        let texts = [
            good.as_mut_ptr().cast::<c_char>(),
            std::ptr::null_mut(),
            bad.as_mut_ptr().cast::<c_char>(),
        ];
        // SAFETY: three pointers, NULL or C strings.
        let read = unsafe { arguments(3, texts.as_ptr()) };
        assert_eq!(read, ["default=single", "gres\u{fffd}"]);
        // SAFETY: NULL and negative counts are allowed.
        assert!(unsafe { arguments(2, std::ptr::null()) }.is_empty());
        // SAFETY: as above.
        assert!(unsafe { arguments(-1, texts.as_ptr()) }.is_empty());
    }
}
