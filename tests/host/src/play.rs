//! Playing a step in this process.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int};
use std::io;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::plugin_file::PluginFile;
use crate::slurm::{Current, CurrentTask, Env, Slurm, offer};
use crate::stderr::Capture;
use crate::step::{Answer, Bytes, Context, Ended, Played, Step};

/// A plugin file, loaded into this process, and what it takes to play steps to it.
///
/// The file keeps its own state from step to step, as it would in a slurmstepd that never ends.
pub struct Host {
    pub(crate) file: PluginFile,
    capture: Capture,
}

/// The plugin has one state and fd 2 is one: one step at a time, over all hosts.
static PLAYING: Mutex<()> = Mutex::new(());

pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    PLAYING.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// Loads the file as the step's program would: with its `api_version`, lacking its `missing`.
    pub fn load(plugin: &Path, step: &Step) -> io::Result<Self> {
        let _alone = one_at_a_time();
        offer(step.api_version);
        Ok(Self { file: PluginFile::load(plugin, &step.missing)?, capture: Capture::new()? })
    }

    /// Plays the step: in forked processes if it says so, or else in this one.
    pub fn play_as_told(&self, step: &Step) -> io::Result<Played> {
        if step.fork { self.play_forked(step) } else { self.play(step) }
    }

    /// Plays the step in this process, task after task. fd 2 is captured meanwhile.
    ///
    /// What the plugin gives up in the last `task_post_fork` (in slurmstepd the tasks keep their
    /// own copy of it) is gone for every `task_init` here.
    pub fn play(&self, step: &Step) -> io::Result<Played> {
        let acts = acts(step)?;
        let _alone = one_at_a_time();
        let slurm = slurm_for(step, false);
        let mut player = Player::new(&self.file, step, &slurm);
        let restore = self.capture.take_stderr_for_now()?;
        for act in &acts {
            player.act(act);
        }
        drop(restore);
        let mut played = player.played();
        played.stderr = Bytes(self.capture.text());
        Ok(played)
    }
}

/// One entry of a step's hooks.
pub(crate) struct Act {
    pub hook: String,
    pub task: Option<usize>,
}

impl Act {
    pub(crate) fn is_task(&self) -> bool {
        self.hook.starts_with("task_")
    }

    /// The tasks that it is for.
    pub(crate) fn tasks(&self, step: &Step) -> Vec<usize> {
        match self.task {
            Some(task) => vec![task],
            None => (0..step.tasks.len()).collect(),
        }
    }
}

/// The step's hooks in order, or what its program calls.
pub(crate) fn acts(step: &Step) -> io::Result<Vec<Act>> {
    let usual: &[&str] = match step.context {
        Context::Remote => &[
            "init",
            "options",
            "init_post_opt",
            "user_init",
            "task_init_privileged",
            "task_post_fork",
            "task_init",
            "task_exit",
            "exit",
        ],
        Context::Local => &["init", "options", "init_post_opt", "local_user_init", "exit"],
        Context::Allocator => &["init", "options", "init_post_opt", "exit"],
        Context::Slurmd => &["init", "slurmd_exit"],
        Context::JobScript => &["init", "options", "job_prolog", "exit"],
        Context::Error => &["init", "exit"],
    };
    let usual = usual.iter().map(|&hook| hook.to_owned()).collect();
    let hooks: &Vec<String> = if step.hooks.is_empty() { &usual } else { &step.hooks };
    hooks
        .iter()
        .map(|text| {
            let (hook, task) = match text.split_once(':') {
                None => (text.as_str(), None),
                Some((hook, task)) => (hook, Some(task.parse().ok())),
            };
            let task = match task {
                Some(None) => return Err(bad_hook(text)),
                Some(Some(task)) if task >= step.tasks.len() => return Err(bad_hook(text)),
                other => other.flatten(),
            };
            Ok(Act { hook: hook.to_owned(), task })
        })
        .collect()
}

fn bad_hook(text: &str) -> io::Error {
    let why = format!("hooks: {text:?} names no task of this step");
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// What the plugin's calls will find.
pub(crate) fn slurm_for(step: &Step, log_to_stderr: bool) -> Slurm {
    let env = step.env.iter();
    Slurm {
        context: step.context,
        items: step.items.clone(),
        task_count: u32::try_from(step.tasks.len()).unwrap_or(u32::MAX),
        env: RefCell::new(
            env.map(|(name, value)| (name.clone().into_bytes(), value.0.clone())).collect(),
        ),
        task: Cell::new(None),
        hook: RefCell::new(String::new()),
        options: RefCell::new(Vec::new()),
        log: RefCell::new(Vec::new()),
        log_bytes: Cell::new(0),
        log_to_stderr,
    }
}

/// Calls hooks and keeps what they answer.
pub(crate) struct Player<'a> {
    file: &'a PluginFile,
    pub(crate) step: &'a Step,
    pub(crate) slurm: &'a Slurm,
    current: Current<'a>,
    arguments: Vec<CString>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) tasks: Vec<Ended>,
    pub(crate) pids: Vec<i32>,
}

impl<'a> Player<'a> {
    pub(crate) fn new(file: &'a PluginFile, step: &'a Step, slurm: &'a Slurm) -> Self {
        Self {
            file,
            step,
            slurm,
            current: Current::new(slurm),
            arguments: step.args.iter().map(c_string).collect(),
            answers: Vec::new(),
            tasks: vec![Ended::default(); step.tasks.len()],
            pids: vec![own_pid(); step.tasks.len()],
        }
    }

    /// Plays one entry: a hook, the option's callbacks, or a hook of one task or of each.
    pub(crate) fn act(&mut self, act: &Act) {
        match act.hook.as_str() {
            "options" => self.options(),
            "task_init" => {
                for task in act.tasks(self.step) {
                    self.task_init(task);
                }
            }
            hook if act.is_task() => {
                for task in act.tasks(self.step) {
                    self.hook(hook, Some(task));
                }
            }
            hook => self.hook(hook, None),
        }
    }

    /// One hook in the task's own environment.
    pub(crate) fn task_init(&mut self, task: usize) {
        let job = self.slurm.env.borrow().clone();
        let mut env = job.clone();
        for (name, value) in &self.step.tasks[task].env {
            match value {
                Some(value) => env.insert(name.clone().into_bytes(), value.0.clone()),
                None => env.remove(name.as_bytes()),
            };
        }
        self.slurm.env.replace(env);
        self.hook("task_init", Some(task));
        self.tasks[task].env = spelled(&self.slurm.env.replace(job));
    }

    pub(crate) fn hook(&mut self, hook: &str, task: Option<usize>) {
        let found = self.file.hook(hook);
        let mut texts: Vec<*mut c_char> = self
            .arguments
            .iter()
            .map(|text| text.as_ptr().cast_mut())
            .chain([ptr::null_mut()])
            .collect();
        let count = c_int::try_from(self.arguments.len()).unwrap_or(c_int::MAX);
        let handle = self.current.handle();
        self.timed(hook, task, || {
            // SAFETY: the handle is the current step and `texts` holds `count` C strings.
            found.map(|hook| unsafe { hook(handle, count, texts.as_mut_ptr()) })
        });
    }

    fn options(&mut self) {
        let registered = self.slurm.options.borrow().clone();
        let remote = c_int::from(self.step.context == Context::Remote);
        for given in &self.step.options {
            let value = given.as_ref().map(c_string);
            let text = value.as_ref().map_or(ptr::null(), |value| value.as_ptr());
            for option in &registered {
                self.timed("option", None, || {
                    // SAFETY: the callback that the plugin registered, with NULL or a C string.
                    let call = |callback: crate::slurm::Callback| unsafe {
                        callback(option.val, text, remote)
                    };
                    option.callback.map(call)
                });
            }
        }
    }

    fn timed(&mut self, hook: &str, task: Option<usize>, call: impl FnOnce() -> Option<c_int>) {
        hook.clone_into(&mut self.slurm.hook.borrow_mut());
        self.slurm.task.set(task.map(|place| self.current_task(place)));
        let start = Instant::now();
        let code = call();
        let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.slurm.task.set(None);
        self.answers.push(Answer { hook: hook.to_owned(), task, code, micros });
    }

    fn current_task(&self, place: usize) -> CurrentTask {
        let task = &self.step.tasks[place];
        CurrentTask {
            place,
            id: task.id.unwrap_or(i32::try_from(place).unwrap_or(i32::MAX)),
            global_id: task.global_id.unwrap_or(u32::try_from(place).unwrap_or(u32::MAX)),
            pid: task.pid.unwrap_or(self.pids[place]),
        }
    }

    pub(crate) fn played(self) -> Played {
        let options = self.slurm.options.borrow();
        Played {
            plugin_version: self.file.version,
            options: options.iter().map(|option| option.name.clone()).collect(),
            answers: self.answers,
            log: self.slurm.log.take(),
            env: spelled(&self.slurm.env.borrow()),
            tasks: self.tasks,
            ..Played::default()
        }
    }
}

fn spelled(env: &Env) -> std::collections::BTreeMap<String, Bytes> {
    env.iter()
        .map(|(name, value)| {
            let name = String::from_utf8_lossy(name).into_owned();
            (name, Bytes(value.clone()))
        })
        .collect()
}

pub(crate) fn own_pid() -> i32 {
    // SAFETY: getpid has no preconditions.
    unsafe { libc::getpid() }
}

/// The bytes up to the first NUL, which is all that C can carry.
fn c_string(bytes: &Bytes) -> CString {
    let text = bytes.0.split(|&byte| byte == 0).next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}
