//! The plugin file as Slurm meets it, played by `spank-host`: what holds for every hook, whatever
//! the plugin decides.

use spank_host::{Bytes, Context, Host, Played, Step, Task, built_plugin};

fn play(step: &Step) -> Played {
    Host::load(&built_plugin(), step)
        .and_then(|host| host.play_as_told(step))
        .expect("the plugin loads and plays")
}

fn tasks(count: usize) -> Vec<Task> {
    vec![Task::default(); count]
}

const OURS: [&str; 7] =
    ["init", "init_post_opt", "user_init", "task_post_fork", "task_init", "task_exit", "exit"];

#[test]
fn a_step_without_the_option_is_played_in_silence_and_unchanged() {
    for fork in [false, true] {
        let step = Step {
            env: [("CUDA_VISIBLE_DEVICES".to_owned(), Bytes::from("0,1"))].into(),
            tasks: tasks(3),
            fork,
            ..Step::default()
        };
        let played = play(&step);
        for hook in OURS {
            let codes = played.codes(hook);
            let expected = if hook.starts_with("task_") { 3 } else { 1 };
            assert_eq!(codes, vec![Some(0); expected], "{hook}");
        }
        assert_eq!(played.output(), 0, "{played:?}");
        assert_eq!(played.env, step.env);
        for task in &played.tasks {
            assert_eq!(task.env, step.env);
            assert!(task.inherited.is_empty() && !task.lost, "{task:?}");
        }
        assert_eq!((played.task_log_copies, played.hung), (0, false));
    }
}

#[test]
fn hooks_that_are_not_ours_are_not_exported() {
    let step = Step {
        context: Context::Local,
        hooks: ["local_user_init", "job_prolog", "job_epilog", "slurmd_exit"]
            .map(str::to_owned)
            .into(),
        ..Step::default()
    };
    let played = play(&step);
    assert!(played.answers.iter().all(|answer| answer.code.is_none()));
}

#[test]
fn the_option_is_registered_wherever_a_user_can_give_it() {
    for context in [Context::Local, Context::Allocator, Context::Remote] {
        let played = play(&Step { context, ..Step::default() });
        assert_eq!(played.options, ["gpu-align"], "{context:?}");
    }
}

#[test]
fn three_spellings_of_no_value_are_one() {
    let step = Step {
        context: Context::Local,
        options: vec![None, Some("".into()), Some("(null)".into())],
        ..Step::default()
    };
    assert_eq!(play(&step).codes("option"), [Some(0); 3]);
}

const ASKED: [&str; 9] = [
    "slurm_api_version",
    "spank_context",
    "spank_get_item",
    "spank_getenv",
    "spank_setenv",
    "spank_option_register",
    "slurm_spank_log",
    "slurm_error",
    "slurm_debug",
];

#[test]
fn a_program_that_lacks_functions_loads_the_plugin_and_gets_answers() {
    let mut cases: Vec<Vec<String>> = ASKED.map(|name| vec![name.to_owned()]).into();
    cases.push(ASKED.map(str::to_owned).into());
    for missing in cases {
        let mut step = Step { missing: missing.clone(), ..Step::default() };
        let host = Host::load(&built_plugin(), &step).expect("the plugin loads");
        for context in [Context::Local, Context::Remote] {
            step.context = context;
            let played = host.play(&step).expect("the step is played");
            for answer in &played.answers {
                let codes = [None, Some(0), Some(-1)];
                assert!(codes.contains(&answer.code), "{missing:?}: {answer:?}");
            }
        }
    }
}

#[test]
fn the_running_release_decides_the_version_that_slurm_checks() {
    let version = |api_version| {
        // A file of its own, since a loaded file's constructor does not run again.
        let copy = tempfile::NamedTempFile::new().expect("a file");
        std::fs::copy(built_plugin(), copy.path()).expect("a copy");
        let step = Step { api_version, ..Step::default() };
        let host = Host::load(copy.path(), &step).expect("the plugin loads");
        host.play(&step).expect("it plays").plugin_version
    };
    assert_eq!(version(0x25_0000), 0x15_0800);
    assert_eq!(version(0x2a_0000), 0x18_0b00);
    assert_eq!(version(0x2d_0000), 0x1a_0500);
    // Unknown: what the header of the build says, which Slurm will refuse.
    let built = version(0);
    assert_ne!(built, 0);
    assert_eq!(version(0x7f_0000), built);
}

#[test]
fn hooks_out_of_order_and_twice_get_their_answers() {
    let orders = [
        vec!["exit", "task_init", "user_init", "init"],
        vec!["task_init:0", "task_init:0", "task_exit:1", "exit", "exit"],
        vec!["init", "init", "options", "user_init", "user_init", "exit"],
    ];
    for hooks in orders {
        for fork in [false, true] {
            let played = play(&Step {
                hooks: hooks.iter().map(|&hook| hook.to_owned()).collect(),
                options: vec![Some("all".into())],
                tasks: tasks(2),
                fork,
                ..Step::default()
            });
            assert!(!played.hung);
            assert!(!played.answers.is_empty());
            for answer in &played.answers {
                assert!(matches!(answer.code, Some(0 | -1)), "{answer:?}");
            }
        }
    }
}

#[test]
fn a_task_that_dies_first_holds_nobody_up() {
    let mut tasks = tasks(3);
    tasks[1].dies = true;
    let played = play(&Step { tasks, fork: true, ..Step::default() });
    assert!(!played.hung);
    assert_eq!(played.codes("task_init"), [Some(0); 2]);
    assert!(played.tasks[1].lost && !played.tasks[2].lost);
}

#[test]
fn endless_and_binary_values_get_an_answer() {
    let garbage: Vec<u8> = (0..1_u32 << 20).map(|n| (n * 37 % 255 + 1) as u8).collect();
    for fork in [false, true] {
        let played = play(&Step {
            args: vec![garbage.clone().into()],
            options: vec![Some(garbage.clone().into())],
            env: [
                ("SLURM_GPU_ALIGN".to_owned(), garbage.clone().into()),
                ("SLURM_STEP_GPUS".to_owned(), garbage.clone().into()),
            ]
            .into(),
            fork,
            ..Step::default()
        });
        assert!(!played.hung);
        assert!(played.output() < 64 * 1024);
        for answer in &played.answers {
            assert!(matches!(answer.code, None | Some(0 | -1)), "{answer:?}");
        }
    }
}
