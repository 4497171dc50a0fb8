use super::super::keys::Key;
use super::super::numbers::{Detail, Line};
use super::super::shot::Maps;
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::path::Path;

fn shot() -> Shot {
    let line = |name: &str, calls: u64, average_ns: u64| Line {
        name: name.into(),
        calls,
        per_second: calls as f64 / 10.0,
        total_ns: Some(calls * average_ns),
        share: calls as f64 / 1_250_000.0,
        detail: (calls > 0).then_some(Detail {
            average_ns,
            p50_ns: average_ns + 12,
            p99_ns: average_ns * 30,
        }),
        is_off: name == "malloc",
        is_by_kernel: false,
        rank: 0,
    };
    let mut heat = Heat::default();
    heat.choose(1, "handle_get");
    for second in 0..30u64 {
        let mut column = vec![0; 65];
        column[7] = 100_000;
        column[8] = 40 * second;
        column[13] = second % 3;
        column[21] = u64::from(second == 20);
        heat.columns.push_back(column);
    }
    let mut lines = vec![
        line("handle_put", 130_310, 287),
        line("handle_get", 1_000_000, 92),
        line("std::collections::hash::map::HashMap<K,V,S>::insert", 7, 25_000_000),
        line("malloc", 119_683, 21),
        line("Gr\u{f6}\u{df}e::\u{65e5}\u{672c}\\x1b[2J", 0, 0),
    ];
    lines.extend((0..70).map(|i| line(&format!("leaf_{i:02}"), 0, 0)));
    let health = vec![
        ("price", "not known: it was not measured on this machine".to_owned()),
        ("overhead", "not known".to_owned()),
        ("hits", "2500000 handled, 0 skipped; 250K a second".to_owned()),
    ];
    let events = (0..60)
        .map(|i| format!("{:>12.6}   20724 handle_put({i}) = 0 <287 ns>", f64::from(i) / 1000.0))
        .collect();
    let traced = Some("handle_put".to_owned());
    let stack = |names: &str, n| (names.split(';').map(str::to_owned).collect(), n);
    let stacks = [
        stack("_start;main;serve;handle_get;malloc", 700),
        stack("_start;main;serve;handle_put;copy;malloc", 250),
        stack("_start;main;log;malloc", 48),
        stack("_start;main;rare;malloc", 2),
    ];
    let flame = Some(("malloc".to_owned(), std::rc::Rc::new(stacks.into_iter().collect())));
    Shot {
        target: "server (20724)".into(),
        seconds: 10,
        lines,
        heat,
        traced,
        events,
        flame,
        health,
        maps: None,
    }
}

/// The screen after these keys.
fn screen((width, height): (u16, u16), is_utf8: bool, keys: &[Key]) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let mut view = View { is_utf8, ..View::default() };
    let shot = shot();
    view.arrange(&shot.lines, rows_for_functions(height));
    for key in keys {
        view.press(*key);
        view.arrange(&shot.lines, rows_for_functions(height));
    }
    terminal.draw(|frame| draw(frame, &shot, &view)).unwrap();
    terminal.backend().to_string()
}

/// Compares with a file, or with NANOPROBE_BLESS set writes it: then look at it.
fn is_golden(name: &str, screen: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/golden").join(format!("{name}.txt"));
    if std::env::var_os("NANOPROBE_BLESS").is_some() {
        std::fs::write(&path, screen).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(screen == golden, "{name} differs from {}:\n{screen}", path.display());
}

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (200, 50);

#[test]
fn the_functions_fit_80_columns_and_use_200() {
    is_golden("functions-80x24", &screen(SMALL, true, &[]));
    is_golden("functions-200x50", &screen(LARGE, true, &[]));
    let chosen = [Key::Char('r'), Key::Down, Key::Down];
    is_golden("reversed-80x24", &screen(SMALL, false, &chosen));
    let filtered: Vec<Key> = "/leaf_3".chars().map(Key::Char).collect();
    is_golden("filter-80x24", &screen(SMALL, true, &filtered));
}

#[test]
fn latency_over_time_has_a_row_for_each_power_of_two() {
    is_golden("latency-80x24", &screen(SMALL, true, &[Key::Char('2')]));
    is_golden("latency-200x50", &screen(LARGE, true, &[Key::Char('2')]));
    is_golden("latency-ascii-80x24", &screen(SMALL, false, &[Key::Char('2')]));
}

#[test]
fn events_health_and_help_are_screens_too() {
    is_golden("events-80x24", &screen(SMALL, true, &[Key::Char('3')]));
    is_golden("events-200x50", &screen(LARGE, true, &[Key::Char('3')]));
    is_golden("health-80x24", &screen(SMALL, true, &[Key::Char('4'), Key::Char('p')]));
    is_golden("help-80x24", &screen(SMALL, true, &[Key::Char('?')]));
}

#[test]
fn callers_are_boxes_as_wide_as_their_share() {
    is_golden("flame-80x24", &screen(SMALL, true, &[Key::Char('5')]));
    is_golden("flame-200x50", &screen(LARGE, true, &[Key::Char('5')]));
}

#[test]
fn maps_of_a_script_are_lines_that_scroll_and_other_tabs_say_what_it_is() {
    let draw_with = |maps: Option<Maps>, keys: &str| {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        let shot = Shot { maps, ..Shot::default() };
        let mut view = View { tab: Tab::Maps, height: 20, lines: 40, ..View::default() };
        for c in keys.chars() {
            view.press(Key::Char(c));
        }
        terminal.draw(|frame| draw(frame, &shot, &view)).unwrap();
        terminal.backend().to_string()
    };
    assert!(draw_with(None, "").contains("there is no script here"));
    assert!(draw_with(Some(Maps::default()), "").contains("nothing is in the script's maps"));
    let lines = (0..40).map(|i| format!("@[{i}]: {}", 1000 - i)).collect();
    let maps = Maps { head: "@: 40".into(), lines, per_second: 12.0, ..Maps::default() };
    let first = draw_with(Some(maps.clone()), "");
    assert!(
        first.contains("@[0]: 1000") && first.contains("20 lines more") && first.contains("12 hits/s"),
        "{first}"
    );
    let later = draw_with(Some(maps.clone()), "jjj");
    assert!(!later.contains("@[2]: 998") && later.contains("@[3]: 997"), "{later}");
    for tab in ["1", "2", "5"] {
        assert!(draw_with(Some(maps.clone()), tab).contains("which counts in its maps: 6"));
    }
}

#[test]
fn any_size_is_drawn() {
    for (width, height) in [(1, 1), (1, 50), (80, 1), (3, 3), (20, 4), (79, 2), (500, 200)] {
        for key in ['1', '2', '3', '4', '5', '6', '?', '/'] {
            screen((width, height), false, &[Key::Char(key)]);
        }
    }
}

#[test]
fn nothing_probed_and_nothing_that_fits_are_said() {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, &Shot::default(), &View::default())).unwrap();
    assert!(terminal.backend().to_string().contains("no function is probed"));
    let filtered: Vec<Key> = "/nothing_like_it".chars().map(Key::Char).collect();
    assert!(screen(SMALL, true, &filtered).contains("no function fits the filter"));
}

#[test]
fn a_call_that_is_too_long_keeps_what_it_returned_and_how_long_it_took() {
    let call = "    0.716405    2486 clientHasPendingReplies(0x7f23f5e9db00, 0, -2632) = 1 <100 ns>";
    assert_eq!(with_end(call, 80).chars().count(), 80);
    assert!(with_end(call, 80).ends_with("0, -.. = 1 <100 ns>"), "{}", with_end(call, 80));
    assert_eq!(with_end(call, 200), call);
    // Where the end takes half of the room nothing is gained.
    assert_eq!(with_end(call, 24), call);
    assert_eq!(with_end("no call", 4), "no call");
}
