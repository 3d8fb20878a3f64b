use hongbao::ledger::{LedgerError, NewSchedule, Noted, Opening};
use hongbao::rain::Times;
use serde_json::json;

use super::{Store, on_both_stores};

on_both_stores!(
    a_template_that_a_schedule_uses_is_not_deleted,
    an_opening_that_has_its_rain_keeps_it_whatever_a_late_process_says,
);

fn plan(openings: &[i64]) -> NewSchedule {
    NewSchedule {
        template: "nightly".into(),
        overrides: json!({"room": "final"}),
        times: Times::Once(openings.to_vec()),
        ahead_ms: 1_000,
    }
}

async fn a_template_that_a_schedule_uses_is_not_deleted(store: Store) {
    let ledger = &store.ledger;
    let rain = json!({"room": "quiz"});
    let none = ledger.create_schedule(&plan(&[9_000]), 5, "s").await;
    assert!(matches!(none, Err(LedgerError::NoTemplate(_))));
    let made = ledger.create_template("nightly", &rain, 5).await.unwrap();
    let again = ledger.create_template("nightly", &rain, 6).await.unwrap();
    assert_eq!(
        (made.rain == rain, &again),
        (true, &made),
        "found, not made anew"
    );
    let other = ledger.create_template("nightly", &json!({}), 6).await;
    assert!(matches!(other, Err(LedgerError::TemplateExists(_))));
    let schedule = ledger
        .create_schedule(&plan(&[9_000]), 5, "s")
        .await
        .unwrap();
    let again = ledger
        .create_schedule(&plan(&[9_000]), 8, "s")
        .await
        .unwrap();
    assert_eq!(again, schedule);
    let other = ledger.create_schedule(&plan(&[9_001]), 8, "s").await;
    assert!(matches!(other, Err(LedgerError::ScheduleKeyReused { .. })));
    let used = ledger.delete_template("nightly").await;
    assert!(matches!(used, Err(LedgerError::TemplateInUse { .. })));
    let running = ledger.running_schedules().await.unwrap();
    assert_eq!(running, std::slice::from_ref(&schedule));
    assert!(ledger.end_schedule(schedule.id).await.unwrap().ended);
    assert!(ledger.running_schedules().await.unwrap().is_empty());
    ledger.delete_template("nightly").await.unwrap();
    let gone = ledger.change_template("nightly", &rain, 9).await;
    assert!(matches!(gone, Err(LedgerError::NoTemplate(_))));
    assert_eq!(
        ledger.schedules(None, 10).await.unwrap().len(),
        1,
        "it is history"
    );
}

async fn an_opening_that_has_its_rain_keeps_it_whatever_a_late_process_says(store: Store) {
    let ledger = &store.ledger;
    let rain = store.rain(1_000).await;
    ledger
        .create_template("nightly", &json!({}), 5)
        .await
        .unwrap();
    let schedule = ledger
        .create_schedule(&plan(&[9_000]), 5, "s")
        .await
        .unwrap();
    let note = async |opening: Opening, tried_at_ms| {
        let noted = Noted {
            opens_at_ms: 9_000,
            opening,
            tried_at_ms,
        };
        ledger.note_opening(schedule.id, &noted).await.unwrap();
        ledger
            .openings(schedule.id, None, 10)
            .await
            .unwrap()
            .remove(0)
    };
    let poor = || Opening::Failed("the sponsor is poor".into());
    assert_eq!(note(poor(), 6).await.opening, poor());
    let missed = Opening::Missed("the sponsor is poor".into());
    assert_eq!(note(missed.clone(), 7).await.opening, missed);
    let created = note(Opening::Created(rain.id), 8).await;
    assert_eq!(created.opening, Opening::Created(rain.id));
    assert_eq!(note(poor(), 9).await, created);
    ledger.decide_openings(schedule.id, 9_000).await.unwrap();
    ledger.decide_openings(schedule.id, 8_000).await.unwrap();
    assert_eq!(
        ledger.schedule(schedule.id).await.unwrap().decided_ms,
        9_000
    );
    assert_eq!(ledger.rain_of_key("nothing").await.unwrap(), None);
}
