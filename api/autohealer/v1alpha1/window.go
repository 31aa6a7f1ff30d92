package v1alpha1

// Window is a time in which the disruptive steps of a policy may begin. A policy with several windows
// may act while one of them is open.
type Window struct {
	// Schedule is when the window opens, in the five fields of cron: minute, hour, day of the month,
	// month, day of the week. For example, "0 22 * * 1-5" is 22:00 from Monday to Friday.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ=')",message="want the time zone in timeZone, and the five fields of the schedule alone"
	// +kubebuilder:validation:XValidation:rule="self.matches('^@(yearly|annually|monthly|weekly|daily|midnight|hourly)$') || self.matches('^ *[^ @]+( +[^ ]+){4} *$')",message="want five fields of a cron schedule, for example 0 22 * * 1-5"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^ *[^ @]+( +[^ ]+){4} *$') || self.matches('(?i)^ *([*?]|[0-5]?[0-9](-[0-5]?[0-9])?)(/0*[1-9][0-9]*)?(,([*?]|[0-5]?[0-9](-[0-5]?[0-9])?)(/0*[1-9][0-9]*)?)*( |$)')",message="want minutes from 0 to 59 in the first field of the schedule, for example 0 22 * * 1-5"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^ *[^ @]+( +[^ ]+){4} *$') || self.matches('(?i)^ *([^ ]+ +){1}([*?]|([01]?[0-9]|2[0-3])(-([01]?[0-9]|2[0-3]))?)(/0*[1-9][0-9]*)?(,([*?]|([01]?[0-9]|2[0-3])(-([01]?[0-9]|2[0-3]))?)(/0*[1-9][0-9]*)?)*( |$)')",message="want hours from 0 to 23 in the second field of the schedule, for example 0 22 * * 1-5"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^ *[^ @]+( +[^ ]+){4} *$') || self.matches('(?i)^ *([^ ]+ +){2}([*?]|(0?[1-9]|[12][0-9]|3[01])(-(0?[1-9]|[12][0-9]|3[01]))?)(/0*[1-9][0-9]*)?(,([*?]|(0?[1-9]|[12][0-9]|3[01])(-(0?[1-9]|[12][0-9]|3[01]))?)(/0*[1-9][0-9]*)?)*( |$)')",message="want days from 1 to 31 in the third field of the schedule, for example 0 22 * * 1-5"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^ *[^ @]+( +[^ ]+){4} *$') || self.matches('(?i)^ *([^ ]+ +){3}([*?]|(0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(-(0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))?)(/0*[1-9][0-9]*)?(,([*?]|(0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)(-(0?[1-9]|1[0-2]|jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))?)(/0*[1-9][0-9]*)?)*( |$)')",message="want months from 1 to 12 or from jan to dec in the fourth field of the schedule, for example 0 22 * * 1-5"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^ *[^ @]+( +[^ ]+){4} *$') || self.matches('(?i)^ *([^ ]+ +){4}([*?]|([0-6]|sun|mon|tue|wed|thu|fri|sat)(-([0-6]|sun|mon|tue|wed|thu|fri|sat))?)(/0*[1-9][0-9]*)?(,([*?]|([0-6]|sun|mon|tue|wed|thu|fri|sat)(-([0-6]|sun|mon|tue|wed|thu|fri|sat))?)(/0*[1-9][0-9]*)?)*( |$)')",message="want days from 0 to 6 or from sun to sat in the fifth field of the schedule, for example 0 22 * * 1-5"
	Schedule string `json:"schedule"`

	// TimeZone is the time zone of the schedule, for example Europe/Berlin. The default is UTC.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$') && self != 'Local'",message="want the name of a time zone, for example UTC or Europe/Berlin"
	TimeZone string `json:"timeZone,omitempty"`

	// Duration is how long the window is open, for example 4h. It counts from the opening, also on days on
	// which the clocks change.
	//
	// +required
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$') && duration(self) > duration('0s') && duration(self) <= duration('8760h')",message="want a duration with its unit, for example 4h, that is more than zero and at most 8760h"
	Duration string `json:"duration"`
}

// MaxWindows is how many windows a policy may have.
const MaxWindows = 16

// The annotations with which a NodeHealthCheck gets windows, because its spec is that of medik8s.
const (
	// WindowsAnnotation has windows, for example "0 22 * * 1-5 for 4h in Europe/Berlin", separated by
	// semicolons.
	WindowsAnnotation = "autohealer.resourcestack.com/windows"
	// UrgentAnnotation has the names of remediation templates that do not wait for a window,
	// separated by commas.
	UrgentAnnotation = "autohealer.resourcestack.com/urgent"
)
