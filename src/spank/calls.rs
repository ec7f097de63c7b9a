//! The Slurm functions that the plugin calls, looked up in the running program when first used.
//!
//! A Rust library is linked `-z now`: one symbol that srun or slurmd lacks would keep the file
//! from loading, and a `required` plugin that does not load breaks every srun of the cluster. So
//! nothing is linked: a function that is missing is an error of that one call.
//!
//! The prototypes written here are compared with the header's by the compiler, in every build.

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bindings::{self, spank_context_t, spank_err_t, spank_item_t, spank_option, spank_t};

/// Why a call to Slurm brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpankError {
    /// The program that loaded the plugin has no such function.
    #[error("this program has no function {0}")]
    Missing(&'static str),
    /// Slurm answered with one of its ESPANK_* numbers (3000 to 3012).
    #[error("{call} answered {code} ({})", meaning(*code))]
    Refused {
        /// The function asked.
        call: &'static str,
        /// Its answer.
        code: spank_err_t,
    },
    /// A variable's value is longer than any that the plugin reads.
    #[error("the value of {name} is longer than {limit} bytes")]
    TooLong {
        /// The variable.
        name: String,
        /// The longest value that is read.
        limit: usize,
    },
}

impl SpankError {
    /// Whether the answer says no more than that a variable is not set.
    pub(super) fn is_unset(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == bindings::ESPANK_ENV_NOEXIST)
    }

    /// Whether the answer says that the buffer was too small.
    pub(super) fn is_no_space(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == bindings::ESPANK_NOSPACE)
    }
}

fn meaning(code: spank_err_t) -> &'static str {
    match code {
        bindings::ESPANK_BAD_ARG => "bad argument, or not in this hook",
        bindings::ESPANK_NOT_TASK => "not inside a task",
        bindings::ESPANK_ENV_EXISTS => "the variable is set already",
        bindings::ESPANK_ENV_NOEXIST => "the variable is not set",
        bindings::ESPANK_NOSPACE => "the buffer is too small",
        bindings::ESPANK_NOT_REMOTE => "only in slurmstepd",
        bindings::ESPANK_NOT_AVAIL => "not available here",
        bindings::ESPANK_NOT_LOCAL => "only in srun",
        _ => "see slurm_errno.h",
    }
}

/// Turns Slurm's answer into a result.
pub(super) fn answer(call: &'static str, code: spank_err_t) -> Result<(), SpankError> {
    if code == 0 { Ok(()) } else { Err(SpankError::Refused { call, code }) }
}

/// One function of the running program, of type `F` (a function pointer).
pub(super) struct Call<F> {
    symbol: &'static CStr,
    /// [`UNKNOWN`], [`ABSENT`] or the function's address.
    address: AtomicUsize,
    prototype: PhantomData<F>,
}

const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

impl<F: Copy> Call<F> {
    /// # Safety
    /// `F` must be a function pointer type that fits the C function `symbol`.
    pub(super) const unsafe fn new(symbol: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<usize>());
        Self { symbol, address: AtomicUsize::new(UNKNOWN), prototype: PhantomData }
    }

    /// The function's name.
    pub(super) fn name(&self) -> &'static str {
        self.symbol.to_str().unwrap_or("?")
    }

    /// The function, or the error that names it.
    pub(super) fn get(&self) -> Result<F, SpankError> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address == UNKNOWN {
            // SAFETY: `symbol` is a C string; dlsym only reads it.
            let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.symbol.as_ptr()) };
            address = if found.is_null() { ABSENT } else { found as usize };
            self.address.store(address, Ordering::Relaxed);
        }
        if address == ABSENT {
            return Err(SpankError::Missing(self.name()));
        }
        // SAFETY: `new` was promised that F is the function pointer type of this symbol, and the
        // address is what dlsym gave for it; both are one machine word (asserted in `new`).
        Ok(unsafe { std::mem::transmute_copy::<usize, F>(&address) })
    }
}

/// Declares the functions in use, and makes the compiler compare each prototype with the header's.
macro_rules! calls {
    ($($name:ident = $symbol:ident : $prototype:ty;)*) => {
        $(
            // SAFETY: `compare_with_header` compiles only where the header has this prototype.
            pub(super) static $name: Call<$prototype> = unsafe {
                Call::new(match CStr::from_bytes_with_nul(concat!(stringify!($symbol), "\0").as_bytes()) {
                    Ok(symbol) => symbol,
                    Err(_) => panic!("a symbol's name holds no NUL"),
                })
            };
        )*
        /// Generic and never called, so that it is checked but not compiled: a reference to the
        /// functions themselves must not get into the file.
        #[allow(dead_code)]
        fn compare_with_header<Never>(_: Never) {
            $(let _: $prototype = bindings::$symbol;)*
        }
    };
}

calls! {
    CONTEXT = spank_context: unsafe extern "C" fn() -> spank_context_t;
    GET_ITEM = spank_get_item: unsafe extern "C" fn(spank_t, spank_item_t, ...) -> spank_err_t;
    GETENV = spank_getenv:
        unsafe extern "C" fn(spank_t, *const c_char, *mut c_char, c_int) -> spank_err_t;
    SETENV = spank_setenv:
        unsafe extern "C" fn(spank_t, *const c_char, *const c_char, c_int) -> spank_err_t;
    OPTION_REGISTER = spank_option_register:
        unsafe extern "C" fn(spank_t, *mut spank_option) -> spank_err_t;
    SPANK_LOG = slurm_spank_log: unsafe extern "C" fn(*const c_char, ...);
    ERROR = slurm_error: unsafe extern "C" fn(*const c_char, ...);
    INFO = slurm_info: unsafe extern "C" fn(*const c_char, ...);
    DEBUG = slurm_debug: unsafe extern "C" fn(*const c_char, ...);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_function_is_an_error_that_names_it_every_time() {
        // SAFETY: no such function exists, so none is ever called.
        let call: Call<unsafe extern "C" fn()> = unsafe { Call::new(c"slurm_no_such_function") };
        for _ in 0..2 {
            assert_eq!(call.get().err(), Some(SpankError::Missing("slurm_no_such_function")));
        }
    }

    #[test]
    fn a_function_of_the_running_program_is_found() {
        // SAFETY: this is getpid's prototype.
        let call: Call<unsafe extern "C" fn() -> c_int> = unsafe { Call::new(c"getpid") };
        for _ in 0..2 {
            let getpid = call.get().expect("libc has getpid");
            // SAFETY: getpid has no preconditions.
            assert_eq!(u32::try_from(unsafe { getpid() }), Ok(std::process::id()));
        }
    }
}
