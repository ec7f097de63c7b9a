//! What may be put in front of the plugin: mostly almost right, sometimes noise, rarely huge.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use spank_host::{Bytes, Context, Items, Step, Task};

use crate::node::Information;

/// A card as the driver shows it.
#[derive(Clone, Debug)]
pub struct Card {
    pub bus: u8,
    pub minor: u32,
}

impl Card {
    pub fn pci(&self) -> String {
        format!("0000:{:02x}:00.0", self.bus)
    }

    pub fn uuid(&self) -> String {
        format!("GPU-00000000-0008-4000-8000-0000000000{:02x}", self.bus)
    }

    pub fn information(&self) -> String {
        let (pci, uuid, minor) = (self.pci(), self.uuid(), self.minor);
        format!(
            "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 118\nGPU UUID: \t {uuid}\n\
             Video BIOS: \t 92.00.45.00.06\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n\
             DMA Mask: \t 0x7fffffffffff\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n\
             GPU Excluded:\t No\n"
        )
    }
}

/// The version of the simulated driver.
pub const DRIVER: &str = "580.159.04";

/// One case for the whole plugin.
#[derive(Clone, Debug)]
pub struct Case {
    pub step: Step,
    pub cards: Vec<Card>,
    pub tree: Vec<(String, Information)>,
    /// Minors that open.
    pub open: Vec<u32>,
    pub gres: Option<Bytes>,
    /// What the Prolog's helper left, perhaps.
    pub record: Bytes,
}

impl Case {
    /// Whether the driver shows exactly `cards`.
    pub fn is_true(&self) -> bool {
        self.tree.len() == self.cards.len()
            && self.tree.iter().zip(&self.cards).all(|((_, shown), card)| {
                matches!(shown, Information::Content(c) if c.0 == card.information().as_bytes())
            })
    }
}

const WORDS: [&str; 26] = [
    "off",
    "auto",
    "all",
    "single",
    "rotate",
    "order=pci",
    "order=slurm",
    "ids=uuid",
    "ids=index",
    "print=node",
    "print=task",
    "print=json",
    "print=off",
    "strict",
    "map=",
    "map=0",
    "map=1,0",
    "map=99999999999999999999",
    "map=-1",
    "0",
    "1",
    "2",
    "GPU-00000000-0008-4000-8000-000000000001",
    "map=GPU-00000000-0008-4000-8000-000000000001",
    "singel",
    "\u{1b}[31m\n",
];

/// Anything at all, of some bytes.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..80)
}

/// A short text over and over, up to a megabyte; `NUL` inside is where C stops reading.
fn huge() -> impl Strategy<Value = Vec<u8>> {
    let seeds = prop_oneof![
        noise(),
        select(vec!["0,", "map=", "all,", "GPU-", "\n", "a", ",", "é", "-1,", "[", "[1]", "1-"])
            .prop_map(|text| text.as_bytes().to_vec()),
    ];
    (seeds, select(vec![5_000_usize, 64 * 1024, 70_000, 1 << 20])).prop_map(|(seed, length)| {
        let seed = if seed.is_empty() { vec![b' '] } else { seed };
        seed.iter().copied().cycle().take(length).collect()
    })
}

/// A hundred thousand numbers.
fn long_list() -> impl Strategy<Value = Vec<u8>> {
    any::<u32>().prop_map(|start| {
        let numbers = (0..100_000_u32).map(|n| start.wrapping_add(n).to_string());
        numbers.collect::<Vec<_>>().join(",").into_bytes()
    })
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => (0..9_u32).prop_map(|n| n.to_string()),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => select(vec!["", "-1", "+1", "4294967296", "99999999999999999999", "0x1", " 1", "1e3"])
            .prop_map(str::to_owned),
    ]
}

fn numbers() -> impl Strategy<Value = Vec<u8>> {
    vec(number(), 0..9).prop_map(|list| list.join(",").into_bytes())
}

pub fn words() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        200 => vec(select(&WORDS[..]), 0..5).prop_map(|words| words.join(",").into_bytes()),
        200 => vec(select(&WORDS[..14]), 0..4).prop_map(|words| words.join(",").into_bytes()),
        30 => noise(),
        1 => huge(),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        200 => numbers(),
        30 => noise(),
        2 => huge(),
        1 => long_list(),
    ]
}

fn variables() -> impl Strategy<Value = BTreeMap<String, Bytes>> {
    let named = |name: &'static str, share: f64, value: BoxedStrategy<Vec<u8>>| {
        proptest::option::weighted(share, value.prop_map(Bytes))
            .prop_map(move |value| value.map(|value| (name.to_owned(), value)))
    };
    (
        named("SLURM_GPU_ALIGN", 0.3, words().boxed()),
        named("SLURM_STEP_GPUS", 0.9, value().boxed()),
        named("SLURM_JOB_GPUS", 0.3, value().boxed()),
        named("SLURM_GPUS_ON_NODE", 0.4, number().prop_map(String::into_bytes).boxed()),
        named("CUDA_VISIBLE_DEVICES", 0.5, value().boxed()),
        named("CUDA_DEVICE_ORDER", 0.2, value().boxed()),
        named("SLURM_LOCALID", 0.2, value().boxed()),
    )
        .prop_map(|(a, b, c, d, e, f, g)| [a, b, c, d, e, f, g].into_iter().flatten().collect())
}

fn task() -> impl Strategy<Value = Task> {
    let binding = select(vec!["gres/gpu:single:1", "gres/gpu:none", "gres/gpu:map_gpu:9", "gpu"]);
    let ids = select(vec![-1, 1, 2, 7, 4096, i32::MAX, i32::MIN]);
    let id = proptest::option::weighted(0.05, ids);
    let global = proptest::option::weighted(0.1, any::<u32>());
    let bound = proptest::option::weighted(0.1, (binding, value()));
    (bound, id, global).prop_map(|(bound, id, global_id)| {
        let env = bound.into_iter().flat_map(|(binding, numbers)| {
            [
                ("SLURMD_TRES_BIND".to_owned(), Some(Bytes::from(binding))),
                ("CUDA_VISIBLE_DEVICES".to_owned(), Some(Bytes(numbers))),
            ]
        });
        Task { env: env.collect(), id, global_id, ..Task::default() }
    })
}

fn tasks() -> impl Strategy<Value = Vec<Task>> {
    prop_oneof![
        100 => vec(task(), 1..2),
        30 => vec(task(), 0..5),
        // Their values would be this test's memory rather than the plugin's.
        1 => Just(vec![Task::default(); 200]),
    ]
}

fn items() -> impl Strategy<Value = Items> {
    let counts = select(vec![0, 1, 2, 4096, 4097, 1 << 20, u32::MAX]);
    let steps = select(vec![0, 1, 0xffff_fffa, 0xffff_fffb, 0xffff_fffc, u32::MAX]);
    let maybe = |share: f64| proptest::bool::weighted(share);
    (proptest::option::weighted(0.1, counts), steps, maybe(0.97), maybe(0.97)).prop_map(
        |(local_tasks, step, has_job, has_step)| Items {
            job_id: has_job.then_some(12),
            step_id: has_step.then_some(step),
            local_tasks,
            ..Items::default()
        },
    )
}

const HOOKS: [&str; 15] = [
    "init",
    "options",
    "init_post_opt",
    "user_init",
    "task_init_privileged",
    "task_post_fork",
    "task_init",
    "task_init",
    "task_exit",
    "exit",
    "local_user_init",
    "job_prolog",
    "job_epilog",
    "slurmd_exit",
    "task_init:0",
];

fn hooks(tasks: usize) -> impl Strategy<Value = Vec<String>> {
    let spelled = |hooks: &[&str]| hooks.iter().map(|&hook| hook.to_owned()).collect::<Vec<_>>();
    // Without `task_post_fork` the plugin keeps the log that it writes the block to.
    let speaking = spelled(&[
        "init",
        "options",
        "init_post_opt",
        "user_init",
        "task_init",
        "task_exit",
        "exit",
    ]);
    let choice = if tasks == 0 { &HOOKS[..14] } else { &HOOKS[..] };
    prop_oneof![
        3 => Just(Vec::new()),
        4 => Just(speaking.clone()),
        1 => vec(0..speaking.len(), 0..4).prop_map(move |doubled| {
            let mut hooks = speaking.clone();
            for place in doubled {
                hooks.insert(place, hooks[place].clone());
            }
            hooks
        }),
        2 => vec(select(choice), 0..14).prop_map(move |hooks| spelled(&hooks)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let contexts = prop_oneof![
        20 => Just(Context::Remote),
        1 => Just(Context::Local),
        1 => Just(Context::Allocator),
        1 => select(vec![Context::Error, Context::Slurmd, Context::JobScript]),
    ];
    let argument = prop_oneof![
        8 => words().prop_map(|words| [b"default=", &words[..]].concat()),
        4 => select(vec!["unconstrained=file", "unconstrained=rank"])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => words(),
        1 => noise(),
    ];
    let options = vec(proptest::option::weighted(0.8, words().prop_map(Bytes)), 0..3);
    (contexts, vec(argument.prop_map(Bytes), 0..2), options, variables(), items(), tasks())
        .prop_flat_map(|(context, args, options, env, items, tasks)| {
            let step = Step { context, args, options, env, items, tasks, ..Step::default() };
            hooks(step.tasks.len()).prop_map(move |hooks| Step { hooks, ..step.clone() })
        })
}

/// The driver's tree for some cards: right, or with one place spoilt.
pub fn tree(cards: &[Card]) -> impl Strategy<Value = Vec<(String, Information)>> + use<> {
    let right: Vec<(String, Information)> = cards
        .iter()
        .map(|card| (card.pci(), Information::Content(card.information().as_str().into())))
        .collect();
    let spoilt = prop_oneof![
        4 => (any::<prop::sample::Index>(), noise()).prop_map(|(at, noise)| {
            let mut text = Card { bus: 1, minor: 0 }.information().into_bytes();
            let at = at.index(text.len());
            let end = (at + noise.len()).min(text.len());
            text.splice(at..end, noise);
            Information::Content(text.into())
        }),
        3 => any::<prop::sample::Index>().prop_map(|at| {
            let mut text = Card { bus: 1, minor: 0 }.information().into_bytes();
            text.truncate(at.index(text.len()));
            Information::Content(text.into())
        }),
        4 => Just(()).prop_map({
            let unnamed = cards.first().cloned();
            move |()| {
                let text = unnamed.iter().map(Card::information).collect::<String>();
                let digits = unnamed.iter().map(Card::uuid).collect::<String>();
                let text = text.replace(&digits, "GPU-????????-????-????-????-????????????");
                Information::Content(text.into_bytes().into())
            }
        }),
        1 => noise().prop_map(|noise| Information::Content(noise.into())),
        1 => huge().prop_map(|text| Information::Content(text.into())),
        1 => Just(Information::Folder),
        1 => Just(Information::Pipe),
        1 => Just(Information::Loop),
        1 => Just(Information::Nothing),
    ];
    let name = prop_oneof!["[a-z0-9][a-z0-9:.]{0,11}", Just("a\nb\u{1b}[31m".to_owned())];
    let odd = proptest::option::weighted(0.25, (any::<prop::sample::Index>(), name, spoilt));
    odd.prop_map(move |odd| {
        let mut tree = right.clone();
        if let Some((at, name, spoilt)) = odd {
            let at = at.index(tree.len() + 1);
            match tree.get_mut(at) {
                Some((_, information)) => *information = spoilt,
                None => tree.push((name, spoilt)),
            }
        }
        tree
    })
}

pub fn cards() -> impl Strategy<Value = Vec<Card>> {
    let minors = Just((0..8_u32).collect::<Vec<_>>()).prop_shuffle();
    (0..9_usize, minors, 1..8_u8).prop_map(|(count, minors, first)| {
        let card = |(place, minor): (usize, u32)| Card { bus: first + 8 * place as u8, minor };
        minors.into_iter().take(count).enumerate().map(card).collect()
    })
}

/// A head and what follows it over and over: forms of gres.conf that would cost more than they hold.
pub const GROWING: [(&str, &str); 16] = [
    ("Name=gpu File=/dev/nvidia", "[1]"),
    ("Name=gpu File=/dev/nvidia[0-1023]", "[1]"),
    ("Name=gpu Count=1024 Type=", "x"),
    ("Name=gpu File=/dev/nvidia[0-1023] Type=", "x"),
    ("Name=gpu File=", "/dev/nvidia0,"),
    ("NodeName=this[1", ",1"),
    ("NodeName=this", "[1]"),
    ("", "Name=gpu File=/dev/nvidia0\n"),
    ("", "a\n"),
    ("", "#\n"),
    ("", "\\\n"),
    ("", "a=\" "),
    ("Name=gpu ", "File=/dev/nvidia0 "),
    ("Include ", "a/"),
    ("", "Include gres.conf\n"),
    ("NodeName=this1 Gres=gpu:", "x"),
];

/// The form, of at most a megabyte.
pub fn grown((head, part): (&str, &str), count: usize) -> String {
    let mut text = head.to_owned() + &part.repeat(count.min((1 << 20) / part.len()));
    text.truncate(1 << 20);
    text
}

/// gres.conf: well-formed lines, lines of pieces, noise, and the forms that grow.
pub fn gres() -> impl Strategy<Value = Bytes> {
    let line = select(vec![
        "AutoDetect=nvml",
        "AutoDetect=nvidia",
        "AutoDetect=off",
        "Name=gpu File=/dev/nvidia[0-7]",
        "Name=gpu Type=a100 File=/dev/nvidia[7,5,3,1] Links=-1,4,4,4",
        "NodeName=this[0-9] Name=gpu File=/dev/nvidia0",
        "NodeName=\"this node\" Name=gpu Count=8",
        "Name=gpu File=/dev/nvidia[0-4294967295]",
        "Name=gpu File=/dev/nvidia[0-18446744073709551615]",
        "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia1",
        "Name=gpu Count=1024",
        "Name=gpu Count=99999999999999999999",
        "Include gres.conf",
        "Include /dev/zero",
        "Include /dev/null",
        "Include .",
        "Name=nic File=/dev/nic0",
        "\\",
        "# \\",
        "Name=gpu File=",
        "Name=gpu File=[[",
        "NodeName=[0-999][0-999][0-999] Name=gpu",
    ]);
    let growing = select(&GROWING[..]);
    let text = prop_oneof![
        300 => vec(line, 0..6).prop_map(|lines| lines.join("\n").into_bytes()),
        30 => noise(),
        1 => huge(),
        2 => (growing, select(vec![100_usize, 10_000, 300_000]))
            .prop_map(|(form, count)| grown(form, count).into_bytes()),
    ];
    text.prop_map(Bytes)
}

/// The record of a node with these cards: right, cut, or with one place spoilt.
fn record(cards: &[Card]) -> impl Strategy<Value = Bytes> + use<> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let card = |card: &Card| {
        let (pci, uuid, minor) = (card.pci(), card.uuid(), card.minor);
        format!(r#"{{"pci":"{pci}","uuid":"{uuid}","minor":{minor},"model":"x","numa":null}}"#)
    };
    let cards = cards.iter().map(card).collect::<Vec<_>>().join(",");
    let (boot_id, driver) = (boot_id.trim(), DRIVER);
    let right =
        format!(r#"{{"schema":1,"boot_id":"{boot_id}","driver":"{driver}","cards":[{cards}]}}"#);
    let right = right.into_bytes();
    let spoilt = (any::<prop::sample::Index>(), noise());
    (proptest::option::of(spoilt), 0..8_u8).prop_map(move |(spoilt, how)| {
        let mut text = right.clone();
        match spoilt {
            Some((at, _)) if how == 0 => text.truncate(at.index(text.len())),
            Some((at, noise)) => {
                let at = at.index(text.len());
                let end = (at + noise.len()).min(text.len());
                text.splice(at..end, noise);
            }
            None => {}
        }
        Bytes(text)
    })
}

pub fn case() -> impl Strategy<Value = Case> {
    let open = prop_oneof![
        3 => Just(None),
        2 => vec(0..8_u32, 0..5).prop_map(Some),
    ];
    cards().prop_flat_map(move |cards| {
        let tree = tree(&cards);
        let gres = proptest::option::weighted(0.7, gres());
        let parts = (step(), tree, open.clone(), gres, record(&cards));
        parts.prop_map(move |(step, tree, open, gres, record)| {
            let mut open = open.unwrap_or_else(|| cards.iter().map(|card| card.minor).collect());
            open.sort_unstable();
            open.dedup();
            Case { step, cards: cards.clone(), tree, open, gres, record }
        })
    })
}
