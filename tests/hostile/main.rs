//! The plugin and its readers under hostile input: whatever a user, a broken driver or a broken
//! gres.conf puts before a hook, it answers 0 or -1 in time, and in few, clean words.
//!
//! The cases are the same in every run. `GPU_ALIGN_HOSTILE_CASES` says how many,
//! `GPU_ALIGN_HOSTILE_SEED` chooses others. Hooks are played on a simulated node with cards, which
//! takes root; a test that is skipped for lack of it says so.

mod inputs;
mod life;
mod node;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use gpu_align::device::Inventory;
use gpu_align::node::driver;
use gpu_align::slurm::gres_list::GresList;
use proptest::prelude::*;
use proptest::test_runner::{
    Config, RngAlgorithm, TestCaseError, TestCaseResult, TestRng, TestRunner,
};
use spank_host::{Answer, Bytes, Context, Host, Played, Step, built_plugin};

use inputs::{Case, case};
use node::{Node, write_driver};

/// No hook takes longer; an unoptimised plugin gets more.
const DEADLINE: Duration = Duration::from_millis(if cfg!(debug_assertions) { 1000 } else { 100 });

/// A loaded machine is slow now and then; what is slow each time is at fault. In ms.
const RETRIES: [u64; 6] = [20, 50, 100, 200, 400, 800];

/// What a task waits for siblings, here in vain: the host plays one task after the other.
const SIBLINGS: Duration = Duration::from_millis(250);

/// All that a step may say.
const MAX_OUTPUT: usize = 64 * 1024;

/// What all cases together may leave this process at.
const MAX_MEMORY: usize = 512 << 20;

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Runs `check` on as many cases as asked for; `share` of the default is what fits a test run.
fn run<S: Strategy>(default: u32, strategy: S, check: impl Fn(S::Value) -> TestCaseResult)
where
    S::Value: Debug,
{
    let cases = from_environment("GPU_ALIGN_HOSTILE_CASES").map_or(default, |n| n as u32);
    let config =
        Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let mut seed = [7; 32];
    let chosen = from_environment("GPU_ALIGN_HOSTILE_SEED").unwrap_or(0);
    seed[..8].copy_from_slice(&chosen.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let start = Instant::now();
    let outcome = TestRunner::new_with_rng(config, rng).run(&strategy, check);
    eprintln!(
        "{cases} cases in {:.1} s, {} MiB at most",
        start.elapsed().as_secs_f32(),
        peak() >> 20
    );
    if let Err(why) = outcome {
        let text = why.to_string();
        panic!("{}", text.chars().take(6_000).collect::<String>());
    }
    assert!(peak() < MAX_MEMORY, "{} MiB", peak() >> 20);
}

/// The most memory that this process ever held, in bytes.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<usize>().ok()).unwrap_or(0) << 10
}

/// Plays a case on the node.
fn play(host: &Host, node: &Node, case: &Case) -> Played {
    node.set_driver(&case.tree).expect("the driver's files");
    node.set_devices(&case.open).expect("the device nodes");
    let gres = node.path("gres.conf");
    match &case.gres {
        Some(text) => fs::write(&gres, &text.0).expect("gres.conf"),
        None => drop(fs::remove_file(&gres)),
    }
    let record = node.path("record.json");
    fs::write(&record, &case.record.0).expect("the record");
    let mut step = case.step.clone();
    let paths = [("gres_conf", &gres), ("record", &record), ("helper", &node.path("no-helper"))];
    step.args.extend(paths.map(|(key, path)| Bytes::from(&*format!("{key}={}", path.display()))));
    // What an earlier case without an end left behind belongs to no slurmstepd of this one.
    let end = Step { hooks: vec!["exit".to_owned()], ..Step::default() };
    host.play(&end).expect("the end is played");
    host.play(&step).expect("the step is played")
}

fn complaint(case: &Case, played: &Played) -> Option<String> {
    answers(&case.step, played).or_else(|| words(played)).or_else(|| cards(case, played))
}

/// 0 or -1, and -1 only in front of a user or where `strict` asks for it.
fn answers(step: &Step, played: &Played) -> Option<String> {
    let strict = spelled(step).windows(6).any(|text| text == b"strict");
    let in_front_of_a_user = matches!(step.context, Context::Local | Context::Allocator);
    let remote = step.context == Context::Remote;
    let fine = |answer: &&Answer| match answer.code {
        None | Some(0) => true,
        Some(-1) => match &*answer.hook {
            "task_init" => strict,
            "option" => !remote,
            _ => in_front_of_a_user,
        },
        Some(_) => false,
    };
    let odd = played.answers.iter().find(|answer| !fine(answer))?;
    Some(format!("{odd:?}"))
}

/// All that a user can have written `strict` in.
fn spelled(step: &Step) -> Vec<u8> {
    let env = step.env.get("SLURM_GPU_ALIGN");
    let options = step.options.iter().flatten();
    let all = step.args.iter().chain(options).chain(env);
    all.flat_map(|bytes| bytes.0.iter().copied().chain([b' '])).collect()
}

/// Bounded output, line by line ours, without a byte that steers a terminal.
fn words(played: &Played) -> Option<String> {
    if played.output() > MAX_OUTPUT {
        return Some(format!("{} bytes of output", played.output()));
    }
    let stderr = String::from_utf8_lossy(&played.stderr.0);
    let log = played.log.iter().map(|line| String::from_utf8_lossy(&line.text.0));
    let lines = stderr.split_terminator('\n').map(|line| line.to_owned().into());
    let fine = |line: &str| {
        (line.starts_with("gpu-align: ") || line.starts_with('{'))
            && !line.chars().any(char::is_control)
            && !line.contains("internal error")
    };
    let odd = log.chain(lines).find(|line| !fine(line))?;
    Some(format!("a line {odd:?}"))
}

/// Rules 3 and 9: what is written names cards that open, each once.
fn cards(case: &Case, played: &Played) -> Option<String> {
    const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";
    if !case.is_true() {
        return None;
    }
    let open: BTreeSet<String> = case
        .cards
        .iter()
        .filter(|card| case.open.contains(&card.minor))
        .map(|card| card.uuid())
        .collect();
    for (task, ended) in case.step.tasks.iter().zip(&played.tasks) {
        let given = task.env.get(VARIABLE).cloned().flatten();
        let given = given.as_ref().or(case.step.env.get(VARIABLE));
        let Some(found) = ended.env.get(VARIABLE).filter(|found| Some(*found) != given) else {
            continue;
        };
        let found = String::from_utf8_lossy(&found.0).into_owned();
        let names: Vec<&str> = found.split(',').collect();
        let once = names.iter().collect::<BTreeSet<_>>().len() == names.len();
        let is_open = |name: &&str| match name.parse::<usize>() {
            Ok(index) => index < open.len(),
            Err(_) => open.contains(*name),
        };
        if !once || !names.iter().all(is_open) {
            return Some(format!("{VARIABLE}={found}"));
        }
    }
    None
}

/// A hook that was too slow, beyond its wait for siblings.
fn too_slow(played: &Played) -> Option<String> {
    let late = |answer: &&Answer| {
        let wait = if answer.hook == "task_init" { SIBLINGS } else { Duration::ZERO };
        Duration::from_micros(answer.micros) > DEADLINE + wait
    };
    played.answers.iter().find(late).map(|answer| format!("{answer:?}"))
}

#[test]
fn no_case_upsets_a_hook() {
    let Some(node) = Node::enter() else {
        return;
    };
    let host = Host::load(&built_plugin(), &Step::default()).expect("the plugin loads");
    run(700, case(), |case| {
        let mut played = play(&host, &node, &case);
        for pause in RETRIES.map(Duration::from_millis) {
            if too_slow(&played).is_none() {
                break;
            }
            std::thread::sleep(pause);
            played = play(&host, &node, &case);
        }
        match complaint(&case, &played).or_else(|| too_slow(&played)) {
            None => Ok(()),
            Some(why) => Err(TestCaseError::fail(why)),
        }
    });
}

#[test]
fn no_program_that_lacks_a_function_is_upset() {
    let Some(node) = Node::enter() else {
        return;
    };
    let names = ["spank_context", "spank_get_item", "spank_getenv", "spank_setenv", "slurm_error"];
    let hosts = names.map(|name| {
        let step = Step { missing: vec![name.to_owned()], ..Step::default() };
        Host::load(&built_plugin(), &step).expect("the plugin loads")
    });
    run(60, case(), |case| {
        for host in &hosts {
            let played = play(host, &node, &case);
            if let Some(why) = complaint(&case, &played) {
                return Err(TestCaseError::fail(why));
            }
        }
        Ok(())
    });
}

fn in_time<T>(work: impl Fn() -> T) -> Result<T, TestCaseError> {
    for pause in RETRIES.map(Duration::from_millis) {
        let start = Instant::now();
        let result = work();
        if start.elapsed() < DEADLINE {
            return Ok(result);
        }
        std::thread::sleep(pause);
    }
    Err(TestCaseError::fail("too slow, each time"))
}

#[test]
fn any_tree_of_the_driver_is_read_or_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let trees = inputs::cards().prop_flat_map(|cards| inputs::tree(&cards));
    run(300, trees, |tree| {
        let driver = root.path().join("proc/driver/nvidia");
        write_driver(&driver, &tree).expect("the driver's files");
        if let Ok(inventory) = in_time(|| driver::read(root.path()))? {
            prop_assert!(inventory.cards().len() <= tree.len());
            for card in inventory.cards() {
                prop_assert!(card.model.len() <= 256 && !card.model.contains(char::is_control));
            }
        }
        Ok(())
    });
}

fn one_card(root: &Path) -> Inventory {
    let card = inputs::Card { bus: 1, minor: 0 };
    let tree = [(card.pci(), node::Information::Content(card.information().as_str().into()))];
    write_driver(&root.join("proc/driver/nvidia"), &tree).expect("the driver's files");
    driver::read(root).expect("one card")
}

#[test]
fn what_grows_in_gres_conf_is_refused_in_time() {
    let root = tempfile::tempdir().expect("a folder");
    let inventory = one_card(root.path());
    let path = root.path().join("gres.conf");
    // The second count is as many lines as are read.
    let counts = [usize::MAX, 32_000];
    for (form, count) in inputs::GROWING.into_iter().flat_map(|form| counts.map(|n| (form, n))) {
        let text = inputs::grown(form, count);
        fs::write(&path, &text).expect("gres.conf");
        fs::write(root.path().join("slurm.conf"), &text).expect("slurm.conf");
        let read = in_time(|| GresList::read(&path, "this1", Path::new("/"), &inventory));
        let read = read.unwrap_or_else(|why| panic!("{form:?}: {why}"));
        assert!(read.map_or(0, |list| list.len()) <= 1024, "{form:?}");
        assert!(peak() < MAX_MEMORY, "{form:?}: {} MiB", peak() >> 20);
    }
}

#[test]
fn any_gres_conf_is_read_or_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let inventory = one_card(root.path());
    run(300, (inputs::gres(), inputs::gres()), |(gres, slurm)| {
        let path = root.path().join("gres.conf");
        fs::write(&path, &gres.0).expect("gres.conf");
        fs::write(root.path().join("slurm.conf"), &slurm.0).expect("slurm.conf");
        let read = in_time(|| GresList::read(&path, "this1", Path::new("/"), &inventory))?;
        match read {
            Ok(list) => prop_assert!(list.len() <= 2048),
            Err(why) => prop_assert!(why.to_string().len() < 1000, "{}", why),
        }
        Ok(())
    });
}
