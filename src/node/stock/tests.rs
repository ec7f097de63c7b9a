use std::fs;

use super::*;

const NAMED: &str = "GPU-00000000-0004-4000-8000-000000000000";
const SLICE: &str = "MIG-00000000-00a0-5000-8000-000000000000";

/// A node with two cards, minors 1 and 0, of which the first has one slice.
fn node() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let file = |path: &str, content: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    for (pci, minor, uuid) in [("0000:01:00.0", 1, NAMED), ("0000:41:00.0", 0, "GPU-????????-…")]
    {
        file(
            &format!("proc/driver/nvidia/gpus/{pci}/information"),
            &format!("Model: X\nGPU UUID: {uuid}\nBus Location: {pci}\nDevice Minor: {minor}\n"),
        );
        file(&format!("sys/bus/pci/devices/{pci}/local_cpulist"), "0-3,8\n");
    }
    file("proc/driver/nvidia/version", "NVRM version: x  580.159.04  x\n");
    file("proc/driver/nvidia/capabilities/gpu1/mig/gi7/access", "DeviceFileMinor: 66\n");
    file("proc/driver/nvidia/capabilities/gpu1/mig/gi7/ci0/access", "DeviceFileMinor: 67\n");
    root
}

fn said(uuid: &str, slices: Vec<nvml::SaidSlice>) -> nvml::Said {
    nvml::Said {
        uuid: uuid.parse().ok(),
        minor: None,
        memory: Some(80 << 30),
        persistence: Some(true),
        compute_mode: Some("default".into()),
        mig: Some(!slices.is_empty()),
        slices,
    }
}

fn said_slice(gi: u32) -> nvml::SaidSlice {
    nvml::SaidSlice {
        uuid: SLICE.parse().unwrap(),
        gi,
        ci: 0,
        profile: "1g.10gb".into(),
        memory: None,
        placement: Some([6, 1]),
    }
}

fn view(cards: Vec<(&str, Result<nvml::Said, Fault>)>) -> View {
    let cards = cards.into_iter().map(|(pci, said)| (pci.parse().unwrap(), said)).collect();
    View { driver: Some("580.159.04".into()), cards, ..View::default() }
}

fn stock(view: Result<View, Fault>, opens: impl Fn(&str) -> bool) -> Stock {
    let root = node();
    let known = driver::read(root.path()).unwrap();
    Stock::of(root.path(), &known, view, opens).unwrap()
}

const OTHER: &str = "GPU-00000000-0004-4000-8000-000000000001";

#[test]
fn nvml_fills_what_the_driver_leaves_open() {
    let cards = vec![
        ("0000:01:00.0", Ok(said(NAMED, vec![said_slice(7)]))),
        ("0000:41:00.0", Ok(said(OTHER, vec![]))),
    ];
    let stock = stock(Ok(view(cards)), |_| true);
    assert!(stock.is_sound(), "{stock:?}");
    assert_eq!(stock.cards[1].uuid.as_ref().unwrap().as_str(), OTHER);
    assert_eq!(stock.cards[0].slices[0].slice.cap_minors, [66, 67]);
    assert_eq!(stock.cards[0].cpus.as_deref(), Some("0-3,8"));
    let text = serde_json::to_string(&stock).unwrap();
    assert_eq!(serde_json::from_str::<Stock>(&text).unwrap(), stock);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["cards"][0]["minor"], 1);
    assert_eq!(json["cards"][0]["slices"][0]["profile"], "1g.10gb");
}

#[test]
fn a_card_without_nvmls_word_is_listed_with_the_reason() {
    let lost = Fault { kind: FaultKind::Lost, why: "card 0000:01:00.0 is lost".into() };
    let cards = vec![("0000:01:00.0", Err(lost.clone()))];
    let stock = stock(Ok(view(cards)), |path| path == "/dev/nvidia1");
    assert!(!stock.is_sound());
    assert_eq!(stock.cards[0].fault, Some(lost));
    let closed = stock.cards[1].fault.as_ref().unwrap();
    assert_eq!(closed.kind, FaultKind::NoPermission);
    assert!(closed.why.contains("may not open /dev/nvidia0"), "{}", closed.why);
}

#[test]
fn a_silent_nvml_leaves_the_drivers_list() {
    let fault = Fault { kind: FaultKind::LibraryMismatch, why: "reboot".into() };
    let stock = stock(Err(fault.clone()), |_| true);
    assert_eq!(stock.nvml, Some(fault));
    assert_eq!(stock.cards.len(), 2);
    assert!(stock.cards.iter().all(|card| card.fault.is_none()) && !stock.is_sound());
}

#[test]
fn two_stories_are_a_difference_and_the_drivers_is_kept() {
    let mut liar = said(OTHER, vec![]);
    liar.minor = Some(Minor(5));
    let cards = vec![("0000:01:00.0", Ok(liar)), ("0000:41:00.0", Ok(said(OTHER, vec![])))];
    let mut view = view(cards);
    view.driver = Some("570.1".into());
    view.strangers = vec!["0000:81:00.0".parse().unwrap()];
    let stock = stock(Ok(view), |_| true);
    let beginnings = [
        "NVML says driver 570.1 and the loaded one is 580.159.04",
        "NVML lists card 0000:81:00.0",
        "card 0000:01:00.0: NVML says UUID GPU-00000000-0004-4000-8000-000000000001 and",
        "card 0000:01:00.0: NVML says minor 5 and the driver's /proc says 1",
    ];
    assert_eq!(stock.differences.len(), beginnings.len(), "{:?}", stock.differences);
    for (said, beginning) in stock.differences.iter().zip(beginnings) {
        assert!(said.starts_with(beginning), "{said}");
    }
    assert_eq!(stock.cards[0].uuid.as_ref().unwrap().as_str(), NAMED);
}

#[test]
fn a_slice_without_capabilities_is_a_fault_and_no_device() {
    let cards = vec![
        ("0000:01:00.0", Ok(said(NAMED, vec![said_slice(9)]))),
        ("0000:41:00.0", Ok(said(OTHER, vec![]))),
    ];
    let stock = stock(Ok(view(cards)), |_| true);
    assert_eq!(stock.cards[0].slices, []);
    assert_eq!(stock.cards[0].fault.as_ref().unwrap().kind, FaultKind::Nonsense);
}
