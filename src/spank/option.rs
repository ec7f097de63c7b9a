//! `--gpu-align[=WORDS]`, the plugin's one option.
//!
//! Slurm calls back several times for one step (environment first, then the command line, and in
//! slurmstepd twice before 24.05), so what is called here must not count its calls.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};

use super::bindings::spank_option;
use super::{Outcome, Spank, SpankError, guard};
use crate::plugin;

/// An option as Slurm keeps it: texts and a callback that live as long as the file.
pub(super) struct SpankOption(UnsafeCell<spank_option>);

// SAFETY: Slurm reads the struct and copies it while `spank_option_register` runs; nobody writes.
unsafe impl Sync for SpankOption {}

impl SpankOption {
    /// The C struct. Slurm's prototype asks for a mutable pointer and only reads.
    pub(super) fn as_ptr(&'static self) -> *mut spank_option {
        self.0.get()
    }
}

/// `has_arg` of an option whose value may be left out (getopt's `optional_argument`).
const OPTIONAL_VALUE: c_int = 2;

static GPU_ALIGN: SpankOption = SpankOption(UnsafeCell::new(spank_option {
    name: c"gpu-align".as_ptr().cast_mut(),
    arginfo: c"[WORDS]".as_ptr().cast_mut(),
    usage:
        c"[gpu-align] give every local rank the GPU it was meant to have and print the mapping: \
        auto, all, single, rotate or off, and more words separated by commas"
            .as_ptr()
            .cast_mut(),
    has_arg: OPTIONAL_VALUE,
    val: 0,
    cb: Some(given),
}));

/// Makes `--gpu-align` known to the program that loaded the plugin.
pub(super) fn register(spank: &Spank<'_>) -> Result<(), SpankError> {
    spank.register_option(&GPU_ALIGN)
}

unsafe extern "C" fn given(_val: c_int, value: *const c_char, remote: c_int) -> c_int {
    guard::guard("the option", || {
        let text = (!value.is_null()).then(|| {
            // SAFETY: not NULL, and Slurm passes a C string.
            unsafe { CStr::from_ptr(value) }.to_string_lossy()
        });
        option_outcome(text.as_deref(), remote != 0)
    })
}

fn option_outcome(text: Option<&str>, remote: bool) -> Outcome {
    plugin::option(text.filter(|text| is_value(text)), remote)
}

/// A value left out arrives as NULL, as "" or, through the environment, as glibc's "(null)".
fn is_value(text: &str) -> bool {
    !matches!(text, "" | "(null)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_ways_to_say_no_value() {
        assert!(!is_value(""));
        assert!(!is_value("(null)"));
        assert!(is_value("single"));
        assert!(is_value("null"));
        assert!(is_value("(null),all"));
    }

    #[test]
    fn the_option_is_what_slurm_documents() {
        // SAFETY: nobody writes the static.
        let option = unsafe { &*GPU_ALIGN.as_ptr() };
        assert_eq!(option.has_arg, 2);
        // SAFETY: the texts are C string literals.
        let (name, usage) = unsafe { (CStr::from_ptr(option.name), CStr::from_ptr(option.usage)) };
        assert_eq!(name, c"gpu-align");
        assert!(usage.to_bytes().starts_with(b"[gpu-align] "));
        // Slurm's SPANK_OPTION_MAXLEN.
        assert!(name.to_bytes().len() <= 75);
    }
}
