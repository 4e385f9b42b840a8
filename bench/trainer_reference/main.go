// The released Kubeflow Trainer as a program: TrainJobs in, the objects that its controller applies out.
//
// It reads one question per line and answers each with a line: {"runtime": …, "trainjob": …, "milliseconds": N}. Without
// milliseconds the answer has the objects; with them the time of one judgement and rendering, measured for that long.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	configapi "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime"
	runtimecore "github.com/kubeflow/trainer/v2/pkg/runtime/core"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
)

type question struct {
	Runtime      json.RawMessage `json:"runtime"`
	TrainJob     json.RawMessage `json:"trainjob"`
	Milliseconds int             `json:"milliseconds"`
}

type answer struct {
	Objects      []any    `json:"objects,omitempty"`
	Errors       []string `json:"errors,omitempty"`
	Microseconds float64  `json:"microseconds,omitempty"`
}

// store has one runtime, as the controller's cache has it, and no snapshot yet; what is applied goes nowhere.
type store struct {
	client.Client
	runtime *trainer.ClusterTrainingRuntime
}

func (s *store) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch found := into.(type) {
	case *trainer.ClusterTrainingRuntime:
		s.runtime.DeepCopyInto(found)
		return nil
	case *corev1.ConfigMap:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, key.Name)
	case *jobset.JobSet:
		return apierrors.NewNotFound(schema.GroupResource{Group: "jobset.x-k8s.io", Resource: "jobsets"}, key.Name)
	case *corev1.Secret:
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	return fmt.Errorf("nothing is known of a %T", into)
}

func (s *store) Apply(context.Context, apiruntime.ApplyConfiguration, ...client.ApplyOption) error {
	return nil
}

type noIndex struct{}

func (noIndex) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return nil
}

func main() {
	ctx := context.Background()
	scheme := apiruntime.NewScheme()
	for _, add := range []func(*apiruntime.Scheme) error{clientgoscheme.AddToScheme, trainer.AddToScheme, jobset.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	place := &store{Client: fake.NewClientBuilder().WithScheme(scheme).Build()}
	runtimes, err := runtimecore.New(ctx, place, noIndex{}, &configapi.Configuration{})
	if err != nil {
		panic(err)
	}
	cluster := runtimes[runtimecore.ClusterTrainingRuntimeGroupKind]
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		place.runtime = &trainer.ClusterTrainingRuntime{}
		if err := json.Unmarshal(asked.Runtime, place.runtime); err != nil {
			panic(err)
		}
		if err := out.Encode(reply(ctx, cluster, asked)); err != nil {
			panic(err)
		}
	}
}

func reply(ctx context.Context, cluster runtime.Runtime, asked question) answer {
	found, _ := once(ctx, cluster, asked)
	if asked.Milliseconds == 0 || found.Errors != nil {
		return found
	}
	count := 0
	began := used()
	for used()-began < time.Duration(asked.Milliseconds)*time.Millisecond {
		if _, err := once(ctx, cluster, asked); err != nil {
			panic(err)
		}
		count++
	}
	return answer{Microseconds: float64((used() - began).Microseconds()) / float64(count)}
}

// used is the processor time of this process, with that of its garbage collector.
func used() time.Duration {
	var found syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &found); err != nil {
		panic(err)
	}
	return time.Duration(found.Utime.Nano() + found.Stime.Nano())
}

// once does what a webhook and a reconciliation do: read the job, judge it, build its objects, write them out.
func once(ctx context.Context, cluster runtime.Runtime, asked question) (answer, error) {
	job := &trainer.TrainJob{}
	if err := json.Unmarshal(asked.TrainJob, job); err != nil {
		return answer{Errors: []string{err.Error()}}, nil
	}
	if _, problems := cluster.ValidateObjects(ctx, nil, job); len(problems) > 0 {
		found := answer{}
		for _, one := range problems {
			found.Errors = append(found.Errors, one.Error())
		}
		return found, nil
	}
	objects, err := cluster.NewObjects(ctx, job)
	if err != nil {
		return answer{Errors: []string{err.Error()}}, nil
	}
	found := answer{}
	for _, one := range objects {
		found.Objects = append(found.Objects, one)
	}
	_, err = json.Marshal(found.Objects)
	return found, err
}
