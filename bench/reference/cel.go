// One expression: what compiles, what it costs, what it yields, by Kubernetes' own compiler for device selectors.
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/blang/semver/v4"
	gocel "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	resourceapi "k8s.io/api/resource/v1"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

type device struct {
	Driver                   string                                                    `json:"driver"`
	AllowMultipleAllocations *bool                                                     `json:"allowMultipleAllocations"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

type evaluation struct {
	Matches *bool                        `json:"matches,omitempty"`
	Derived *resourceapi.DeviceAttribute `json:"derived,omitempty"`
	Value   string                       `json:"value,omitempty"`
	Error   string                       `json:"error,omitempty"`
	Cost    string                       `json:"cost,omitempty"`
}

type compiled struct {
	// Why the expression itself is refused; empty where it compiles.
	CompileError string `json:"compileError,omitempty"`
	// Why it is no selector (or derived attribute) although it compiles.
	ResultError string       `json:"resultError,omitempty"`
	Type        string       `json:"type,omitempty"`
	MaxCost     string       `json:"maxCost,omitempty"`
	Evaluations []evaluation `json:"evaluations,omitempty"`
}

func expression(w *world) (out compiled) {
	// Some expressions bring the compiler down. In an API server the request fails; here it is said.
	defer func() {
		if problem := recover(); problem != nil {
			out = compiled{CompileError: fmt.Sprintf("panic: %v", problem)}
		}
	}()
	return compile(w)
}

func compile(w *world) compiled {
	on := switches(w.Features)
	features := cel.Features{
		EnableConsumableCapacity: on.ConsumableCapacity,
		EnableListTypeAttributes: on.ListTypeAttributes,
	}
	kind := environment.NewExpressions
	if w.Stored {
		kind = environment.StoredExpressions
	}
	options := cel.Options{EnvType: &kind, DerivedAttribute: w.Derived}
	compiler := cel.GetCompiler(features)
	found := compiler.CompileCELExpression(w.Expression, options)
	if found.Error == nil {
		out := compiled{Type: found.OutputType.String(), MaxCost: strconv.FormatUint(found.MaxCost, 10)}
		for _, item := range w.Devices {
			out.Evaluations = append(out.Evaluations, evaluate(found, item, w.Derived))
		}
		return out
	}
	// Is it the expression, or only its type? What is no selector has a value all the same.
	env := compiler.CompileCELExpression("true", cel.Options{EnvType: &kind}).Environment
	ast, issues := env.Compile(w.Expression)
	if issues != nil {
		return compiled{CompileError: found.Error.Detail}
	}
	out := compiled{ResultError: found.Error.Detail, Type: ast.OutputType().String()}
	program, err := env.Program(ast, gocel.CostLimit(resourceapi.CELSelectorExpressionMaxCost), gocel.InterruptCheckFrequency(100))
	if err != nil {
		return compiled{CompileError: "program instantiation failed: " + err.Error()}
	}
	for _, item := range w.Devices {
		out.Evaluations = append(out.Evaluations, value(env, program, item))
	}
	return out
}

func evaluate(found cel.CompilationResult, item device, derived bool) (out evaluation) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	input := cel.Device{
		Driver:                   item.Driver,
		AllowMultipleAllocations: item.AllowMultipleAllocations,
		Attributes:               item.Attributes,
		Capacity:                 item.Capacity,
	}
	var details *gocel.EvalDetails
	var err error
	if derived {
		out.Derived, details, err = found.EvaluateDerivedAttribute(ctx, input)
	} else {
		var matches bool
		matches, details, err = found.DeviceMatches(ctx, input)
		if err == nil {
			out.Matches = &matches
		}
	}
	out.finish(details, err)
	return out
}

func (e *evaluation) finish(details *gocel.EvalDetails, err error) {
	if err != nil {
		e.Error = err.Error()
	}
	if details != nil && details.ActualCost() != nil {
		e.Cost = strconv.FormatUint(*details.ActualCost(), 10)
	}
}

// A map of domains in which a missing one is an empty map, as Kubernetes gives it to a selector.
type domains struct {
	traits.Mapper
	empty ref.Val
}

func (d domains) Find(key ref.Val) (ref.Val, bool) {
	if found, ok := d.Mapper.Find(key); ok {
		return found, true
	}
	return d.empty, true
}

func value(env *gocel.Env, program gocel.Program, item device) (out evaluation) {
	variables, err := bindings(env, item)
	if err != nil {
		out.Error = err.Error()
		return out
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	result, details, err := program.ContextEval(ctx, variables)
	if err == nil {
		out.Value = shown(result, 0)
	}
	out.finish(details, err)
	return out
}

func bindings(env *gocel.Env, item device) (map[string]any, error) {
	adapter := env.CELTypeAdapter()
	empty := adapter.NativeToValue(map[string]any{})
	attributes, capacity := map[string]any{}, map[string]any{}
	for name, attribute := range item.Attributes {
		held, err := native(attribute)
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		put(attributes, string(name), item.Driver, held)
	}
	for name, amount := range item.Capacity {
		put(capacity, string(name), item.Driver, apiservercel.Quantity{Quantity: &amount.Value})
	}
	return map[string]any{"device": map[string]any{
		"driver":                   item.Driver,
		"allowMultipleAllocations": item.AllowMultipleAllocations != nil && *item.AllowMultipleAllocations,
		"attributes":               domains{types.NewStringInterfaceMap(adapter, attributes), empty},
		"capacity":                 domains{types.NewStringInterfaceMap(adapter, capacity), empty},
	}}, nil
}

func put(into map[string]any, name, driver string, value any) {
	domain, id, qualified := strings.Cut(name, "/")
	if !qualified {
		domain, id = driver, name
	}
	if into[domain] == nil {
		into[domain] = map[string]any{}
	}
	into[domain].(map[string]any)[id] = value
}

func native(attribute resourceapi.DeviceAttribute) (any, error) {
	switch {
	case attribute.IntValues != nil:
		return attribute.IntValues, nil
	case attribute.BoolValues != nil:
		return attribute.BoolValues, nil
	case attribute.StringValues != nil:
		return attribute.StringValues, nil
	case attribute.VersionValues != nil:
		return versions(attribute.VersionValues...)
	case attribute.IntValue != nil:
		return *attribute.IntValue, nil
	case attribute.BoolValue != nil:
		return *attribute.BoolValue, nil
	case attribute.StringValue != nil:
		return *attribute.StringValue, nil
	case attribute.VersionValue != nil:
		found, err := versions(*attribute.VersionValue)
		if err != nil {
			return nil, err
		}
		return found[0], nil
	}
	return nil, errors.New("unsupported attribute value")
}

// A value with its types, in a form that is the same however a map is ordered.
func shown(value ref.Val, depth int) string {
	if depth > 20 {
		return "…"
	}
	switch v := value.(type) {
	case types.Null:
		return "null"
	case types.Bool, types.Int, types.Uint:
		return fmt.Sprintf("%s:%v", value.Type().TypeName(), value.Value())
	case types.Double:
		if math.IsNaN(float64(v)) {
			return "double:nan"
		}
		return fmt.Sprintf("double:%016x", math.Float64bits(float64(v)))
	case types.String:
		return "string:" + hex.EncodeToString([]byte(v))
	case types.Bytes:
		return "bytes:" + hex.EncodeToString([]byte(v))
	case types.Duration:
		return fmt.Sprintf("duration:%d", v.Duration.Nanoseconds())
	case types.Timestamp:
		return fmt.Sprintf("timestamp:%d.%d", v.Time.Unix(), v.Time.Nanosecond())
	case *types.Optional:
		if !v.HasValue() {
			return "none"
		}
		return "some(" + shown(v.GetValue(), depth+1) + ")"
	case *types.Type:
		return "type:" + v.TypeName()
	case apiservercel.Quantity:
		return "quantity:" + v.Quantity.String()
	case *apiservercel.Quantity:
		return "quantity:" + v.Quantity.String()
	case apiservercel.Semver:
		return "semver:" + v.Version.String()
	case *apiservercel.Semver:
		return "semver:" + v.Version.String()
	case apiservercel.Format:
		return "kubernetes.NamedFormat:" + v.Name
	case traits.Mapper:
		var entries []string
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			entries = append(entries, shown(key, depth+1)+"="+shown(v.Get(key), depth+1))
		}
		sort.Strings(entries)
		return "{" + strings.Join(entries, ",") + "}"
	case traits.Lister:
		var items []string
		for it := v.Iterator(); it.HasNext() == types.True; {
			items = append(items, shown(it.Next(), depth+1))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	return fmt.Sprintf("%s:%v", value.Type().TypeName(), value.Value())
}

func versions(texts ...string) ([]apiservercel.Semver, error) {
	found := make([]apiservercel.Semver, len(texts))
	for place, text := range texts {
		version, err := semver.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("parse semantic version: %w", err)
		}
		found[place] = apiservercel.Semver{Version: version}
	}
	return found, nil
}
