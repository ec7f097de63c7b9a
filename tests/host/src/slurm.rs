//! Slurm's side of the SPANK interface: what the plugin's calls find and change.
//!
//! Numbers are written out from spank.h and slurm_errno.h rather than taken from the plugin's own
//! bindings, so that a mistake there does not agree with itself here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use crate::step::{Bytes, Context, Items, Line};

pub(crate) type Env = BTreeMap<Vec<u8>, Vec<u8>>;
pub(crate) type Callback = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

const ERROR: c_int = 3000;
const BAD_ARG: c_int = 3001;
const NOT_TASK: c_int = 3002;
const ENV_EXISTS: c_int = 3003;
const ENV_NOEXIST: c_int = 3004;
const NOSPACE: c_int = 3005;
const NOT_REMOTE: c_int = 3006;

const LEVELS: [&str; 7] = ["spank_log", "error", "info", "verbose", "debug", "debug2", "debug3"];

/// More than this is not kept of what a step logs; the tests' bound is far below.
const LOG_LIMIT: usize = 4 << 20;

/// An option that the plugin registered.
#[derive(Clone)]
pub(crate) struct Registered {
    pub name: String,
    pub val: c_int,
    pub callback: Option<Callback>,
}

/// The task that the hook now running runs for.
#[derive(Clone, Copy)]
pub(crate) struct CurrentTask {
    pub place: usize,
    pub id: i32,
    pub global_id: u32,
    pub pid: i32,
}

/// One step as the plugin's calls see it. Its address is the `spank_t`.
pub(crate) struct Slurm {
    pub context: Context,
    pub items: Items,
    pub task_count: u32,
    pub env: RefCell<Env>,
    pub task: Cell<Option<CurrentTask>>,
    pub hook: RefCell<String>,
    pub options: RefCell<Vec<Registered>>,
    pub log: RefCell<Vec<Line>>,
    pub log_bytes: Cell<usize>,
    /// Log lines also go to fd 2, as in slurmstepd (forked play).
    pub log_to_stderr: bool,
}

static CURRENT: AtomicPtr<Slurm> = AtomicPtr::new(ptr::null_mut());
static API_VERSION: AtomicI64 = AtomicI64::new(0);

/// Makes a step the one that the plugin's calls reach, until it is dropped.
pub(crate) struct Current<'a>(&'a Slurm);

impl<'a> Current<'a> {
    /// Only one at a time: the caller holds the host's lock.
    pub(crate) fn new(slurm: &'a Slurm) -> Self {
        CURRENT.store(ptr::from_ref(slurm).cast_mut(), Ordering::SeqCst);
        Self(slurm)
    }

    pub(crate) fn handle(&self) -> *mut c_void {
        ptr::from_ref(self.0).cast_mut().cast()
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        CURRENT.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

fn current() -> Option<&'static Slurm> {
    // SAFETY: `Current` keeps the step borrowed while the pointer is set, and the plugin's calls
    // come only from hooks that run within that time.
    unsafe { CURRENT.load(Ordering::SeqCst).as_ref() }
}

/// The step, if `handle` is its handle.
fn of(handle: *mut c_void) -> Option<&'static Slurm> {
    current().filter(|slurm| ptr::eq(ptr::from_ref(*slurm).cast(), handle))
}

#[repr(C)]
struct Table {
    context: extern "C" fn() -> c_int,
    get_item: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> c_int,
    get_variable: unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int) -> c_int,
    set_variable: unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char, c_int) -> c_int,
    unset_variable: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    option_register: unsafe extern "C" fn(*mut c_void, *const SpankOption) -> c_int,
    say: unsafe extern "C" fn(c_int, *const c_char),
    api_version: extern "C" fn() -> c_long,
}

static TABLE: Table = Table {
    context,
    get_item,
    get_variable,
    set_variable,
    unset_variable,
    option_register,
    say,
    api_version,
};

/// Offers Slurm's functions to whatever is loaded from now on, with this `slurm_api_version()`.
pub(crate) fn offer(api: i64) {
    static ONCE: Once = Once::new();
    API_VERSION.store(api, Ordering::SeqCst);
    ONCE.call_once(|| {
        let path = CString::new(env!("SPANK_HOST_SLURM")).expect("a path holds no NUL");
        // SAFETY: our own library, whose one entry takes a table of the layout above.
        unsafe {
            let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
            assert!(!library.is_null(), "{}", env!("SPANK_HOST_SLURM"));
            let install = libc::dlsym(library, c"spank_host_install".as_ptr());
            assert!(!install.is_null());
            let install: unsafe extern "C" fn(*const Table) = std::mem::transmute(install);
            install(&raw const TABLE);
        }
    });
}

extern "C" fn api_version() -> c_long {
    API_VERSION.load(Ordering::SeqCst)
}

extern "C" fn context() -> c_int {
    current().map_or(Context::Error, |slurm| slurm.context) as c_int
}

unsafe extern "C" fn get_item(handle: *mut c_void, item: c_int, to: *mut c_void) -> c_int {
    let Some(slurm) = of(handle).filter(|_| !to.is_null()) else {
        return BAD_ARG;
    };
    if slurm.context != Context::Remote {
        return NOT_REMOTE;
    }
    let items = &slurm.items;
    let count = |number: Option<u32>| number.or(Some(slurm.task_count));
    let value = match item {
        0 | 1 => items.uid,
        2 => items.job_id,
        3 => items.step_id,
        4 => items.nodes,
        5 => items.node_id,
        6 => count(items.local_tasks),
        7 => count(items.total_tasks),
        11..=14 => match slurm.task.get() {
            None => return NOT_TASK,
            Some(task) => Some(match item {
                11 => task.id as u32,
                12 => task.global_id,
                13 => 0,
                _ => task.pid as u32,
            }),
        },
        _ => return BAD_ARG,
    };
    match value {
        // SAFETY: spank.h: each of these items takes a pointer to a 32-bit number.
        Some(value) => unsafe { to.cast::<u32>().write(value) },
        None => return ERROR,
    }
    0
}

/// # Safety
/// `text` must be NULL or a C string.
unsafe fn bytes<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: not NULL, so the caller vouches for a C string.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

unsafe extern "C" fn get_variable(
    handle: *mut c_void,
    name: *const c_char,
    to: *mut c_char,
    room: c_int,
) -> c_int {
    // SAFETY: the plugin passes a C string.
    let (Some(slurm), Some(name)) = (of(handle), unsafe { bytes(name) }) else {
        return BAD_ARG;
    };
    if slurm.context != Context::Remote {
        return NOT_REMOTE;
    }
    let Ok(room) = usize::try_from(room) else {
        return BAD_ARG;
    };
    let env = slurm.env.borrow();
    let Some(value) = env.get(name) else {
        return ENV_NOEXIST;
    };
    if room > 0 {
        let copied = value.len().min(room - 1);
        // SAFETY: the plugin's buffer has `room` bytes.
        unsafe {
            ptr::copy_nonoverlapping(value.as_ptr().cast(), to, copied);
            to.add(copied).write(0);
        }
    }
    if value.len() >= room { NOSPACE } else { 0 }
}

unsafe extern "C" fn set_variable(
    handle: *mut c_void,
    name: *const c_char,
    value: *const c_char,
    overwrite: c_int,
) -> c_int {
    // SAFETY: the plugin passes C strings.
    let (name, value) = unsafe { (bytes(name), bytes(value)) };
    let (Some(slurm), Some(name), Some(value)) = (of(handle), name, value) else {
        return BAD_ARG;
    };
    if slurm.context != Context::Remote {
        return NOT_REMOTE;
    }
    let mut env = slurm.env.borrow_mut();
    if overwrite == 0 && env.contains_key(name) {
        return ENV_EXISTS;
    }
    env.insert(name.to_vec(), value.to_vec());
    0
}

unsafe extern "C" fn unset_variable(handle: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: the plugin passes a C string.
    let (Some(slurm), Some(name)) = (of(handle), unsafe { bytes(name) }) else {
        return BAD_ARG;
    };
    if slurm.context != Context::Remote {
        return NOT_REMOTE;
    }
    slurm.env.borrow_mut().remove(name);
    0
}

/// `struct spank_option` of spank.h.
#[repr(C)]
struct SpankOption {
    name: *const c_char,
    arginfo: *const c_char,
    usage: *const c_char,
    has_arg: c_int,
    val: c_int,
    callback: Option<Callback>,
}

unsafe extern "C" fn option_register(handle: *mut c_void, option: *const SpankOption) -> c_int {
    // SAFETY: NULL, or the plugin's option.
    let (Some(slurm), Some(option)) = (of(handle), unsafe { option.as_ref() }) else {
        return BAD_ARG;
    };
    // SAFETY: the plugin's text.
    let Some(name) = (unsafe { bytes(option.name) }) else {
        return BAD_ARG;
    };
    if *slurm.hook.borrow() != "init" || slurm.context == Context::Slurmd {
        return BAD_ARG;
    }
    slurm.options.borrow_mut().push(Registered {
        name: String::from_utf8_lossy(name).into_owned(),
        val: option.val,
        callback: option.callback,
    });
    0
}

unsafe extern "C" fn say(level: c_int, text: *const c_char) {
    // SAFETY: the C side passes what vasprintf made.
    let (Some(slurm), Some(text)) = (current(), unsafe { bytes(text) }) else {
        return;
    };
    let level = usize::try_from(level).unwrap_or(0);
    let written = slurm.log_bytes.get() + text.len();
    slurm.log_bytes.set(written);
    if written > LOG_LIMIT {
        return;
    }
    if slurm.log_to_stderr && level < 2 {
        let prefix = if level == 1 { "slurmstepd: error: " } else { "" };
        let line = [prefix.as_bytes(), text, b"\n"].concat();
        // SAFETY: `line` is only read.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    }
    slurm.log.borrow_mut().push(Line {
        level: LEVELS.get(level).copied().unwrap_or("?").to_owned(),
        hook: slurm.hook.borrow().clone(),
        task: slurm.task.get().map(|task| task.place),
        text: Bytes(text.to_vec()),
    });
}
