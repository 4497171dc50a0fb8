//! The page and the picture in a browser: no error, no request, and what is clicked does what it says.
//!
//! For:     `page`, `flame`.
//! Keeps:   the browser's console stays empty; zoom, search, sorting and the choice of a function work.

use report::{Run, To};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Before anything else of the page: what goes wrong is kept.
const EARLY: &str = "<script>window.wrong = []; \
    window.addEventListener('error', function (e) { wrong.push(String(e.message)); }); \
    document.addEventListener('securitypolicyviolation', function (e) { wrong.push('policy: ' + e.violatedDirective); }); \
    ['error', 'warn'].forEach(function (k) { console[k] = function (m) { wrong.push(String(m)); }; });</script>";

/// Behind all of it: clicks, and what they have changed.
const LATE: &str = r##"<script>
function box(name) { return Array.from(document.querySelectorAll('#frames .f')).find(function (g) { return g.dataset.n === name; }); }
function click(e) { e.dispatchEvent(new MouseEvent('click', {bubbles: true})); }
var seen = {};
seen.wide = Number(box('main').querySelector('rect').getAttribute('width'));
click(box('left'));
seen.zoomed = Number(box('left').querySelector('rect').getAttribute('width'));
seen.hidden = box('right').style.display;
window.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}));
seen.back = box('right').style.display;
nanoprobe.search('left|malloc');
seen.found = document.querySelectorAll('#frames .found').length;
seen.matched = document.getElementById('matched').textContent;
if (document.getElementById('choice')) {
  seen.cells = document.querySelectorAll('#heat rect').length;
  click(document.querySelectorAll('tr.pick')[1]);
  seen.choice = document.getElementById('choice').value;
  seen.others = document.querySelectorAll('#heat rect').length;
  var head = Array.from(document.querySelectorAll('th.sorts')).find(function (h) { return h.textContent === 'calls'; });
  click(head);
  seen.first = head.closest('table').tBodies[0].rows[0].cells[0].textContent;
  click(head);
  seen.last = head.closest('table').tBodies[0].rows[0].cells[0].textContent;
}
seen.requests = performance.getEntriesByType('resource').length;
seen.wrong = wrong;
var out = document.createElement('pre'); out.id = 'seen'; out.textContent = '@@' + JSON.stringify(seen) + '@@';
document.documentElement.appendChild(out);
</script>"##;

fn run() -> Run {
    let function = |calls: u64, min: u64| {
        format!(
            r#"{{"calls":{calls},"returned":{calls},"total_ns":{},"ns":[{{"min":{min},"max":{},"count":{calls}}}]}}"#,
            calls * min,
            min * 2 - 1
        )
    };
    let column = |at: u64, a: u64, b: u64| {
        format!(
            r#"{{"type":"latency","at_ms":{at},"interval_ms":1000,"data":{{"@":{{"busy":{},"slow":{}}}}}}}"#,
            function(a, 64),
            function(b, 1 << 20)
        )
    };
    let lines = [
        r#"{"type":"run","data":{"program":"server","pid":7,"command":["nanoprobe","record"],"arguments":["./server","<b>"]}}"#.to_owned(),
        r#"{"type":"attached_probes","data":{"probes":4,"rungs":{"window":4}}}"#.to_owned(),
        column(1000, 900, 1),
        column(2000, 100, 2),
        format!(r#"{{"type":"latency","data":{{"@":{{"busy":{},"slow":{}}}}}}}"#, function(1000, 64), function(3, 1 << 20)),
        r#"{"type":"stacks","data":{"@":[{"frames":["malloc+0x0","left+0x1","main+0x2"],"count":30},{"frames":["malloc+0x0","right+0x1","main+0x2"],"count":60},{"frames":["malloc+0x0","other+0x3"],"count":10}]}}"#.to_owned(),
        r#"{"type":"call","data":{"name":"slow","tid":9,"at_ns":1500,"args":[1],"ret":2,"ns":2500000}}"#.to_owned(),
        r#"{"type":"price","data":{"ns":41.5,"overhead_percent":1.25}}"#.to_owned(),
        r#"{"type":"receipt","data":{"hits":2006,"handled":2005,"skipped":{"ended_inside":1},"detach_verified":true}}"#.to_owned(),
    ];
    Run::read(lines.join("\n").as_bytes()).unwrap()
}

fn browser() -> PathBuf {
    let all = ["chromium", "chromium-browser", "google-chrome"];
    let dirs: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let found =
        all.iter().flat_map(|name| dirs.iter().map(move |dir| dir.join(name))).find(|path| path.exists());
    found.expect("no chromium: scripts/debian-packages installs it")
}

/// What the page says of itself.
fn seen(page: &str, name: &str) -> serde_json::Value {
    let dir = std::env::temp_dir().join(format!("np-browser-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file: &Path = &dir.join("page.html");
    std::fs::write(file, page).unwrap();
    let mut command = Command::new(browser());
    command.args([
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
    ]);
    command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    command.arg("--dump-dom").arg(format!("file://{}", file.display()));
    let output = command.output().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    // The script's own text has the mark too: the last two are the answer's.
    let mut parts = dom.rsplit("@@");
    let answer =
        parts.nth(1).unwrap_or_default().replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    serde_json::from_str(&answer)
        .unwrap_or_else(|e| panic!("{e}: {answer}\n{dom}\n{}", String::from_utf8_lossy(&output.stderr)))
}

fn check_picture(seen: &serde_json::Value) {
    assert_eq!(seen["wrong"], serde_json::json!([]), "{seen}");
    assert_eq!(seen["requests"], 0, "{seen}");
    let near = |name: &str, wanted: f64| (seen[name].as_f64().unwrap() - wanted).abs() < 1.0;
    assert!(near("wide", 1062.0) && near("zoomed", 1180.0), "{seen}");
    assert_eq!((&seen["hidden"], &seen["back"]), (&"none".into(), &"".into()), "{seen}");
    assert_eq!((&seen["found"], &seen["matched"]), (&4.into(), &"found: 100.00 %".into()), "{seen}");
}

#[test]
fn a_page_works_in_a_browser_and_loads_nothing() {
    let page = String::from_utf8(To::Html.bytes(&run()).unwrap()).unwrap();
    for text in ["server (7)", "2,006", "41.5 ns", "1.25 %", "&lt;b&gt;", "slow(1)"] {
        assert!(page.contains(text), "{text}");
    }
    let page =
        page.replacen("<head>", &format!("<head>{EARLY}"), 1).replace("</body>", &format!("{LATE}</body>"));
    let seen = seen(&page, "page");
    check_picture(&seen);
    assert_eq!(
        (&seen["cells"], &seen["others"], &seen["choice"]),
        (&2.into(), &2.into(), &"busy".into()),
        "{seen}"
    );
    assert_eq!((&seen["first"], &seen["last"]), (&"busy".into(), &"slow".into()), "{seen}");
}

#[test]
fn a_picture_works_by_itself() {
    let svg = String::from_utf8(To::Flame.bytes(&run()).unwrap()).unwrap();
    let (_, svg) = svg.split_once("?>\n").unwrap();
    // In a page of nothing else, so that it can be asked.
    let page = format!("<!DOCTYPE html><html><head>{EARLY}</head><body>{svg}{LATE}</body></html>");
    check_picture(&seen(&page, "picture"));
}
