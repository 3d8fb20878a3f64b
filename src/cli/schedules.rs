//! `hongbao template` and `hongbao schedule`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use hongbao::client::schedules::{NewSchedule, Schedule, Template};
use hongbao::config::Settings;
use hongbao::rain::{Clock, TimeOfDay, Times, UtcOffset, Weekday, Weekly};

use super::moment::utc;
use super::rains::{RainFlags, show_rain};
use super::remote::ServerFlags;

#[derive(Subcommand)]
pub enum TemplateCommand {
    /// Record a rain by name
    Create(Box<DefinitionFlags>),
    /// Replace it. Rains that were made from it stay as they are
    Update(Box<DefinitionFlags>),
    /// All templates, by name
    List {
        #[command(flatten)]
        server: ServerFlags,
    },
    /// One template as it was recorded, as JSON
    Show {
        name: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Forget it; refused while a schedule uses it
    Delete {
        name: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Create a rain from it
    Rain {
        name: String,
        /// Fields that take the place of the template's, like {"room":"final","opens_at_ms":1795262400000}; null takes one away
        #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_object)]
        with: Value,
        /// Your own name for this request: the same key makes one rain
        #[arg(long)]
        key: Option<String>,
        #[command(flatten)]
        server: ServerFlags,
    },
}

#[derive(Args)]
pub struct DefinitionFlags {
    name: String,
    #[command(flatten)]
    rain: RainFlags,
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Subcommand)]
pub enum ScheduleCommand {
    /// Create the rains of a template ahead of its opening times
    Create(PlanFlags),
    /// All schedules, newest first
    List {
        #[command(flatten)]
        server: ServerFlags,
    },
    /// One schedule, and what became of its openings
    Show {
        schedule: i64,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// No other rain follows from it; those that are there stay
    End {
        schedule: i64,
        #[command(flatten)]
        server: ServerFlags,
    },
}

#[derive(Args)]
pub struct PlanFlags {
    template: String,
    #[command(flatten)]
    times: TimesFlags,
    /// The place of --daily and --weekly, like +08:00. A number: it does not know of summer time
    #[arg(long, value_name = "OFFSET", default_value = "Z")]
    utc_offset: UtcOffset,
    /// Days of --weekly, like friday,saturday
    #[arg(long, value_delimiter = ',', requires = "weekly")]
    on: Vec<Weekday>,
    /// How long before its opening a rain is created and loaded, ms [default: 600000]
    #[arg(long, value_name = "MS")]
    ahead_ms: Option<i64>,
    /// Fields that take the place of the template's, like {"room":"final"}
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = parse_object)]
    with: Value,
    /// Your own name for this request: the same key makes one schedule
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct TimesFlags {
    /// Openings, ms since 1970
    #[arg(long, value_delimiter = ',', value_name = "MS")]
    once: Vec<i64>,
    /// Every day at this time, like 20:00
    #[arg(long, value_name = "HH:MM")]
    daily: Option<TimeOfDay>,
    /// At this time on the days of --on
    #[arg(long, value_name = "HH:MM", requires = "on")]
    weekly: Option<TimeOfDay>,
}

fn parse_object(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err("must be a JSON object, like {\"room\":\"final\"}".into()),
    }
}

impl PlanFlags {
    fn schedule(self) -> NewSchedule {
        let utc_offset = self.utc_offset;
        let times = match (self.times.daily, self.times.weekly) {
            (Some(at), _) => Times::Daily(Clock { at, utc_offset }),
            (None, Some(at)) => Times::Weekly(Weekly {
                days: self.on,
                at,
                utc_offset,
            }),
            (None, None) => Times::Once(self.times.once),
        };
        NewSchedule {
            template: self.template,
            overrides: self.with,
            times,
            ahead_ms: self.ahead_ms,
            key: self.key,
        }
    }
}

pub async fn template(settings: &Settings, command: TemplateCommand) -> anyhow::Result<ExitCode> {
    match command {
        TemplateCommand::Create(flags) => {
            let (server, json) = (flags.server.connect(settings)?, flags.server.json);
            let made = server
                .create_template(&flags.name, &json!(flags.rain.rain()))
                .await?;
            show_templates(&[made], json)?;
        }
        TemplateCommand::Update(flags) => {
            let (server, json) = (flags.server.connect(settings)?, flags.server.json);
            let changed = server
                .update_template(&flags.name, &json!(flags.rain.rain()))
                .await?;
            show_templates(&[changed], json)?;
        }
        TemplateCommand::List { server } => {
            show_templates(&server.connect(settings)?.templates().await?, server.json)?;
        }
        TemplateCommand::Show { name, server } => {
            let template = server.connect(settings)?.template(&name).await?;
            say!("{}", serde_json::to_string_pretty(&template)?);
        }
        TemplateCommand::Delete { name, server } => {
            server.connect(settings)?.delete_template(&name).await?;
            if server.json {
                say!("{}", json!({ "deleted": name }));
            } else {
                say!("template {name} is deleted");
            }
        }
        TemplateCommand::Rain {
            name,
            with,
            key,
            server,
        } => {
            let admin = server.connect(settings)?;
            let rain = admin.rain_from_template(&name, &with, key.as_deref());
            show_rain(&rain.await?, server.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_templates(templates: &[Template], json: bool) -> anyhow::Result<()> {
    if json {
        say!("{}", serde_json::to_string_pretty(templates)?);
        return Ok(());
    }
    for template in templates {
        say!("{:<24}  {}", template.name, template.rain);
    }
    Ok(())
}

pub async fn schedule(settings: &Settings, command: ScheduleCommand) -> anyhow::Result<ExitCode> {
    let (schedule, json) = match command {
        ScheduleCommand::Create(flags) => {
            let (server, json) = (flags.server.connect(settings)?, flags.server.json);
            (server.create_schedule(&flags.schedule()).await?, json)
        }
        ScheduleCommand::List { server } => {
            let schedules = server.connect(settings)?.schedules().await?;
            if server.json {
                say!("{}", serde_json::to_string_pretty(&schedules)?);
            } else {
                schedules.iter().try_for_each(show)?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        ScheduleCommand::Show { schedule, server } => {
            let admin = server.connect(settings)?;
            (admin.schedule(schedule).await?, server.json)
        }
        ScheduleCommand::End { schedule, server } => {
            let admin = server.connect(settings)?;
            (admin.end_schedule(schedule).await?, server.json)
        }
    };
    if json {
        say!("{}", serde_json::to_string_pretty(&schedule)?);
    } else {
        show(&schedule)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(schedule: &Schedule) -> anyhow::Result<()> {
    let ended = if schedule.ended { ", ended" } else { "" };
    say!("schedule  {}{ended}", schedule.id);
    say!(
        "template  {} with {}",
        schedule.template,
        schedule.overrides
    );
    say!("times     {}", serde_json::to_string(&schedule.times)?);
    say!("ahead     {} ms", schedule.ahead_ms);
    for at in &schedule.next_openings_ms {
        say!("next      {}", utc(*at));
    }
    for opening in &schedule.openings {
        let rain = opening.rain_id.map(|rain| format!(" rain {rain}"));
        let why = opening
            .problem
            .as_ref()
            .map(|problem| format!(": {problem}"));
        say!(
            "opening   {} {}{}{}",
            utc(opening.opens_at_ms),
            opening.state,
            rain.unwrap_or_default(),
            why.unwrap_or_default()
        );
    }
    Ok(())
}
