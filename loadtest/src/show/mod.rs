//! What a person sees while it runs, on standard error: a small picture on a terminal, plain lines elsewhere, nothing when quiet. The summary
//! goes to standard output.

/// A line a second.
pub mod pace;
/// Packets falling.
mod sky;

use std::io::IsTerminal;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use console::Term;
use hongbao::wire::Outcome;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::meter::{Meter, Spread};
use crate::rain::session::Crew;
use hongbao::paint::{Paint, is_dumb, thousands};
use sky::Sky;

/// Between two frames on a terminal.
const FRAME: Duration = Duration::from_millis(80);
/// Between two lines elsewhere.
const LINE: Duration = Duration::from_secs(1);
/// The latency shown is that of the last this long.
const LATENCY_WINDOW: Duration = Duration::from_millis(960);
/// Columns of a bar.
const BAR: u64 = 44;

/// What is under way.
#[derive(Clone)]
pub enum View {
    Nothing,
    Working(String),
    Gathering {
        crew: Arc<Crew>,
        wanted: u64,
    },
    Countdown {
        opens: Instant,
    },
    Falling {
        crew: Arc<Crew>,
        packets: u64,
        sessions: u64,
    },
    Settling {
        credited: u64,
        won: u64,
    },
}

impl View {
    pub fn working(what: &str) -> View {
        View::Working(what.to_owned())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Picture,
    Lines,
    Quiet,
}

/// The handle; clones show on the same place.
#[derive(Clone)]
pub struct Show {
    mode: Mode,
    paint: Paint,
    bar: ProgressBar,
    view: watch::Sender<View>,
    task: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Show {
    /// Starts the task that draws.
    pub fn start(quiet: bool) -> Show {
        let terminal = std::io::stderr().is_terminal();
        let mode = match (quiet, terminal && !is_dumb()) {
            (true, _) => Mode::Quiet,
            (false, true) => Mode::Picture,
            (false, false) => Mode::Lines,
        };
        let target = match mode {
            Mode::Picture => ProgressDrawTarget::stderr_with_hz(30),
            Mode::Lines | Mode::Quiet => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(ProgressStyle::with_template("{msg}").expect("the template is fixed"));
        let show = Show {
            mode,
            paint: Paint::for_terminal(terminal),
            bar,
            view: watch::Sender::new(View::Nothing),
            task: Arc::default(),
        };
        let task = match mode {
            Mode::Picture => Some(tokio::spawn(show.clone().picture())),
            Mode::Lines => Some(tokio::spawn(show.clone().lines())),
            Mode::Quiet => None,
        };
        *show.task.lock().expect("nothing panics holding the task") = task;
        show
    }

    /// Stops drawing and leaves the terminal clean.
    pub async fn end(&self) {
        let task = self
            .task
            .lock()
            .expect("nothing panics holding the task")
            .take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await; // it was aborted
        }
        self.bar.finish_and_clear();
        self.print("");
    }

    /// What is under way from now on.
    pub fn view(&self, view: View) {
        self.view.send_replace(view);
    }

    pub fn heading(&self, lines: &[String]) {
        if let Some((title, rest)) = lines.split_first() {
            self.print("");
            let title = self.paint.bold(title);
            self.print(&format!("  {} {title}", self.paint.packet(" ¥ ")));
            for line in rest {
                self.print(&format!("  {}", self.paint.dim(line)));
            }
            self.print("");
        }
    }

    /// A step is done: a line that stays.
    pub fn done(&self, text: &str) {
        self.print(&format!("  {} {text}", self.paint.green("✓")));
    }

    pub fn warn(&self, text: &str) {
        self.print(&format!("  {} {text}", self.paint.red("!")));
    }

    fn print(&self, line: &str) {
        match self.mode {
            Mode::Picture => self.bar.println(line),
            Mode::Lines => eprintln!("{line}"),
            Mode::Quiet => {}
        }
    }

    async fn picture(self) {
        let width = || usize::from(Term::stderr().size().1);
        let mut sky = Sky::new(width());
        let mut latency = Latency::default();
        let mut ticks = interval(FRAME);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut frame = 0usize;
        loop {
            ticks.tick().await;
            frame += 1;
            let view = self.view.borrow().clone();
            let text = self.draw(&view, &mut sky, &mut latency, frame);
            self.bar.set_message(text);
            self.bar.tick();
        }
    }

    fn draw(&self, view: &View, sky: &mut Sky, latency: &mut Latency, frame: usize) -> String {
        let paint = self.paint;
        let wheel = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];
        let wheel = paint.gold(wheel[frame % wheel.len()]);
        match view {
            View::Nothing => String::new(),
            View::Working(what) => format!("  {wheel} {what} …"),
            View::Gathering { crew, wanted } => {
                let here = crew.meter.gathered.load(Relaxed);
                let bar = bar(here, *wanted, paint);
                let (here, wanted) = (thousands(here), thousands(*wanted));
                format!("  {wheel} people are coming  {bar} {here} of {wanted}")
            }
            View::Countdown { opens } => {
                let left = opens.saturating_duration_since(Instant::now());
                let seconds = left.as_millis().div_ceil(1_000);
                let empty = sky.frame(0.0, paint);
                let text = match seconds {
                    0 => "now".to_owned(),
                    n => format!("{n} …"),
                };
                format!("{empty}\n  {wheel} the rain opens in {}", paint.gold(&text))
            }
            View::Falling {
                crew,
                packets,
                sessions,
            } => {
                let meter = &crew.meter;
                let left = packets.saturating_sub(meter.winners.load(Relaxed));
                let share = left as f32 / (*packets).max(1) as f32;
                let sky = sky.frame(share, paint);
                let bar = bar(left, *packets, paint);
                let figures = figures(meter, *sessions, latency.look(meter), paint);
                let (left, packets) = (paint.gold(&thousands(left)), thousands(*packets));
                format!("{sky}\n  {bar} {left} of {packets} left\n {figures}")
            }
            View::Settling { credited, won } => {
                let bar = bar(*credited, *won, paint);
                let (credited, won) = (thousands(*credited), thousands(*won));
                format!("  {wheel} crediting  {bar} {credited} of {won}")
            }
        }
    }

    async fn lines(self) {
        let mut latency = Latency::default();
        let mut ticks = interval(LINE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks.tick().await; // the first is at once
        loop {
            ticks.tick().await;
            match &*self.view.borrow() {
                View::Nothing | View::Working(_) => {}
                View::Gathering { crew, wanted } => {
                    let here = crew.meter.gathered.load(Relaxed);
                    eprintln!(
                        "  {} of {} people are here",
                        thousands(here),
                        thousands(*wanted)
                    );
                }
                View::Countdown { opens } => {
                    let left = opens.saturating_duration_since(Instant::now());
                    eprintln!("  the rain opens in {:.0} s", left.as_secs_f64());
                }
                View::Falling {
                    crew,
                    packets,
                    sessions,
                } => {
                    let meter = &crew.meter;
                    let left = packets.saturating_sub(meter.winners.load(Relaxed));
                    let latency = latency.look(meter);
                    let figures = figures(meter, *sessions, latency, Paint::PLAIN);
                    eprintln!("  {:>6} left {figures}", thousands(left));
                }
                View::Settling { credited, won } => {
                    let (credited, won) = (thousands(*credited), thousands(*won));
                    eprintln!("  {credited} of {won} wins are credited");
                }
            }
        }
    }
}

/// Latency of the last second, kept a moment so that a person can read it.
#[derive(Default)]
struct Latency {
    last: Spread,
    looked: Option<Instant>,
}

impl Latency {
    fn look(&mut self, meter: &Meter) -> Spread {
        if self.looked.is_none_or(|at| at.elapsed() >= LATENCY_WINDOW) {
            self.looked = Some(Instant::now());
            self.last = meter.recent_latency();
        }
        self.last
    }
}

fn figures(meter: &Meter, sessions: u64, latency: Spread, paint: Paint) -> String {
    let number = |n: u64| paint.bold(&format!("{:>6}", thousands(n)));
    let won = number(meter.winners.load(Relaxed));
    let missed = number(meter.count(Outcome::Missed));
    let over = number(meter.count(Outcome::SoldOut) + meter.count(Outcome::Closed));
    let rate = number(meter.last_second());
    let waiting = number(sessions.saturating_sub(meter.decided.load(Relaxed)));
    let p99 = paint.bold(&format!("{:>5.1} ms", latency.p99));
    format!(
        " won {won}  missed {missed}  too late {over}  still at it {waiting}  grabs/s {rate}  p99 {p99}"
    )
}

fn bar(part: u64, whole: u64, paint: Paint) -> String {
    let full = (part.min(whole) * BAR).checked_div(whole).unwrap_or(0);
    let (full, empty) = (full as usize, (BAR - full) as usize);
    format!(
        "{}{}",
        paint.red(&"━".repeat(full)),
        paint.dim(&"─".repeat(empty))
    )
}
