package deploy_test

import (
	"slices"

	"github.com/resourcestack/autohealer/api/autohealer/v1alpha1"
)

// windowTrials are windows of a set that the schema accepts or refuses like the compiler. Only the
// compiler knows which dates exist, whether a range is empty, and the names of time zones.
func windowTrials() (trials []trial[v1alpha1.ConditionSetSpec]) {
	try := func(late bool, windows ...v1alpha1.Window) {
		w := windows[0]
		trials = append(trials, trial[v1alpha1.ConditionSetSpec]{
			name: "window " + w.Schedule + " for " + w.Duration + " in " + w.TimeZone, late: late,
			change: func(s *v1alpha1.ConditionSetSpec) { s.Windows = windows },
		})
	}
	with := func(late bool, schedules, zones, durations []string) {
		for _, schedule := range schedules {
			for _, zone := range zones {
				for _, duration := range durations {
					try(late, v1alpha1.Window{Schedule: schedule, TimeZone: zone, Duration: duration})
				}
			}
		}
	}
	schedule, zone, duration := []string{"0 22 * * 1-5"}, []string{""}, []string{"4h"}
	with(false, []string{"* * * * *", "*/5 0-6,22 ? jan mon-fri", " 0  0 * * * ", "0 0 29 2 *", "@daily", "0 0 * *", "0 0 * * * *", "@every 1h", "@reboot", "daily", "", "CRON_TZ=UTC 0 0 * * *", "TZ=UTC @daily"}, zone, duration)
	with(false, []string{
		"60 0 * * *", "0 24 * * *", "0 0 0 * *", "0 0 32 * *", "0 0 * 13 *", "0 0 * * 7", "*/0 * * * *", "a b c d e", ", 0 * * *",
		"00 08 * * *", "59 23 31 12 6", "5/10 * 1-31/2 JAN-Dec Sun", "0 0 * * mon,wed-FRI/2",
	}, zone, duration)
	with(true, []string{"0 0 30 2 *", "0 0 31 4,6 *", "30-10 * * * *"}, zone, duration)
	with(false, schedule, []string{"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+1", "Local", "../UTC", "Europe/", "+01:00", "Europe Berlin"}, duration)
	with(true, schedule, []string{"Europe/Bielefeld", "CET/DST"}, duration)
	with(false, schedule, zone, []string{"8760h", "1h30m", "1.5h", "90s", "1ns", "0s", "0h0m", "8761h", "99999999h", "-4h", "4", "1d", "four hours", ""})
	try(false, slices.Repeat([]v1alpha1.Window{{Schedule: "0 22 * * *", Duration: "1h"}}, v1alpha1.MaxWindows)...)
	try(false, slices.Repeat([]v1alpha1.Window{{Schedule: "0 22 * * *", Duration: "1h"}}, v1alpha1.MaxWindows+1)...)
	return trials
}
